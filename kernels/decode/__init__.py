"""The operations of the decode loop: a torch reference beside each fast body."""
