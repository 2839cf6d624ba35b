"""What everything may use: errors, random numbers, progress, memory, files, citations. Imports nothing of ours."""
