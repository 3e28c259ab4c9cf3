-- The table and the role stay: they may hold what others need.
DROP PUBLICATION IF EXISTS {{ ident .Publication }};
