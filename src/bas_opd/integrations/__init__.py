"""Budget, selector and ledger in front of the teacher of other trainers.

Each module names the trainer that it needs; none of them is imported by the rest of the package.
"""
