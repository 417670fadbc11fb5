-- Changes no table. From this version on, an attempt names the checkpoint that it continues from, in its JSON. An earlier
-- program that writes the attempt again would drop the name: the number of this migration keeps it from taking over the
-- session.
SELECT 1;
