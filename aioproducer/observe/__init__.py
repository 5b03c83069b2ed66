"""What a producer says about itself in its log."""
