"""Speech tokenizer: log-mel to tokens of 25 Hz."""
