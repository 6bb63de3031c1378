"""What a text says beside its words: Markdown and HTML that are taken out, SSML that is obeyed."""
