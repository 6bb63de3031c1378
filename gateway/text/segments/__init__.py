"""Where a text is cut into what is spoken at once, and how each segment ends."""
