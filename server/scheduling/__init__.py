"""When a batch forms, what it waits for, and the four threads that carry it."""
