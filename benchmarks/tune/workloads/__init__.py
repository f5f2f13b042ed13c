"""What the benchmarks of tuning train."""
