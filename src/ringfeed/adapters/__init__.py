"""What gives a loader to a framework: one module for each, and no other part of ringfeed imports any."""
