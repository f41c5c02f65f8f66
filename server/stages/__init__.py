"""The four stages as pure functions, from request bytes to reply bytes; and explanations of ads."""
