"""ResNets on a GPU: their archives, points, and what is measured of each."""
