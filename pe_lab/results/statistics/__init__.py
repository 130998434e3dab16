"""Statistics of runs, functions of numbers alone.

``proportions``  k of n seeds that fit or generalise, with Wilson intervals; two clusters of seeds
``across_tasks`` interquartile mean, stratified bootstrap, performance profile, probability of
                 improvement
``pairs``        an exact test of two encodings, Holm's correction over all pairs
``letters``      which encodings differ, as letters
``power``        what n seeds can show, how many a difference needs
"""
