"""The pages, and what writes some of them: docs.generate, docs.findings, docs.leaderboard."""
