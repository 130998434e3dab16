"""The encodings that change a trained one at test time."""

TEST_TIME = frozenset(
    {
        *("pi", "ntk_old", "ntk_fixed", "ntk_mixed", "yarn", "longrope", "dynamic_ntk"),
        *("rerope", "leaky_rerope", "self_extend"),
    }
)
"""Those of conf/pe whose class has ``at_test_time``; tables are made without importing classes."""
