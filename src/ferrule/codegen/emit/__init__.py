"""From a scheduled kernel to a program, part by part."""
