"""Data sets as plain arrays: numpy and Pillow only, so that a decoding process starts without torch."""
