-- Of some kinds several things can be proposed about at once: which one it is (owner: changes).

ALTER TABLE proposals ADD COLUMN item TEXT NOT NULL DEFAULT '';
