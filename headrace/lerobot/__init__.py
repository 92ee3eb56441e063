"""Robot episodes: LeRobot v3 data sets, where they lie."""
