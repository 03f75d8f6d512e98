"""The command lines, one file a tool; nothing else imports them."""
