"""The cluster within this process."""
