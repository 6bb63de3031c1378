"""Replays golden vectors through the models and reports every output's error against its tolerance."""
