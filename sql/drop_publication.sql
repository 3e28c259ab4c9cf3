-- The table and the role are not dropped, because they may still be in use.
DROP PUBLICATION IF EXISTS {{ ident .Publication }};
