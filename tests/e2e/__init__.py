"""Whole clusters of real processes under faults: kill -9, pauses, bad disks, cut networks, bad input."""
