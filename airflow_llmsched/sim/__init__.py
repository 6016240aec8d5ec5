"""The outside world under a virtual clock: the same ports, so that control cannot tell."""
