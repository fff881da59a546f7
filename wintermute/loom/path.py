"""The path of a branch: the branches it was forked from, each up to its fork, then itself.

`PATH` begins a statement that names `:branch`; its table `path` has a row for each branch and
`until`, the place of the last turn that belongs to the path. Places grow along a path.
"""

LAST = 9223372036854775807

PATH = (
    f"WITH RECURSIVE path (branch_id, until) AS (SELECT :branch, {LAST}"
    " UNION ALL SELECT c.branch_id, t.seq FROM path p JOIN branches b ON b.id = p.branch_id"
    " JOIN turns t ON t.id = b.forked_from JOIN casts c ON c.id = t.cast_id)"
)
