"""When a batch forms, what it waits for, and the threads that carry it."""
