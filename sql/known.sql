-- Wait until the slots know the publications of the new daemons: each transaction that began before these existed has to end, and the slots
-- have to confirm it. This takes a minute at most if no long transaction is open. What else is wrong, the next statement says.
DO $outboxcdc$ DECLARE
    old_slots text[] := {{ array .HandOver.OldSlots }};
    old_publications text[] := {{ array .HandOver.OldPublications }};
    next xid := (pg_snapshot_xmax(pg_current_snapshot())::text::bigint % 4294967296)::text::xid;
BEGIN
    FOR i IN 1..240 LOOP
        IF NOT EXISTS (SELECT FROM pg_publication WHERE pubname = ANY (old_publications)) OR (
            SELECT count(*) < cardinality(old_slots) OR bool_and(age(catalog_xmin) <= age(next)) FROM pg_replication_slots WHERE slot_name = ANY (old_slots) AND active) THEN
            RETURN;
        END IF;
        PERFORM pg_sleep(0.5);
    END LOOP;
    RAISE EXCEPTION 'the slots do not know the publications yet: end old transactions, and repeat this script';
END $outboxcdc$;
