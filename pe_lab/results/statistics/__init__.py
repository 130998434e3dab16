"""Statistics of runs, functions of numbers alone.

``seeds``        k of n seeds that fit or generalise, means, intervals, two clusters of seeds
``across_tasks`` an exact test of two encodings, Holm's correction; interquartile mean, stratified
                 bootstrap, performance profile, probability of improvement
"""
