-- Settings of this session, which those of the role and the database must not change: nothing ends the statements, and what they say is shown.
SET search_path = pg_catalog, pg_temp;
SET statement_timeout = 0;
SET client_min_messages = notice;
SET synchronous_commit = on;
SET default_transaction_isolation = 'read committed';
SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout';

-- Wait until the slots know the publications of the new daemons: each transaction that began before these existed has to end, and the slots
-- have to confirm it. This takes a minute at most if no long transaction is open. What else is wrong, the next statement says.
DO $outboxcdc$ DECLARE
    old_slots text[] := ARRAY['outboxcdc_0_of_4', 'outboxcdc_1_of_4', 'outboxcdc_2_of_4', 'outboxcdc_3_of_4'];
    old_publications text[] := ARRAY['outboxcdc_0_of_4', 'outboxcdc_1_of_4', 'outboxcdc_2_of_4', 'outboxcdc_3_of_4'];
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

-- Hand over, while writers wait. First this checks that the publications of the new daemons together have every
-- partition exactly once, and that the slots know them. It waits until the old daemons have delivered everything, says that they are to
-- be stopped, and waits for that. The new slots are copies of an old one: everything after this moment is in them. It drops the old
-- publications, so that an old daemon that is started again delivers nothing.
--
-- If it fails, or its session ends at any moment, repeat it, and do what it says. Until it has dropped the publications, nothing is changed.
DO $outboxcdc$ DECLARE
    old_slots text[] := ARRAY['outboxcdc_0_of_4', 'outboxcdc_1_of_4', 'outboxcdc_2_of_4', 'outboxcdc_3_of_4'];
    new_slots text[] := ARRAY['outboxcdc_0_of_2', 'outboxcdc_1_of_2'];
    old_publications text[] := ARRAY['outboxcdc_0_of_4', 'outboxcdc_1_of_4', 'outboxcdc_2_of_4', 'outboxcdc_3_of_4'];
    new_publications text[] := ARRAY['outboxcdc_0_of_2', 'outboxcdc_1_of_2'];
    outbox regclass := '"public"."outbox"';
    divided text := '"public"."outbox"'; -- the table with the partitions
    mark text := format('handed over from slots %s, publications %s', old_slots, old_publications);
    again text := '; drop the publications of the new daemons that exist, and repeat step 1 of docs/scale.md';
    written pg_lsn;
    wrong text;
    done boolean;
BEGIN
    COMMIT; -- which fails in a transaction
    IF EXISTS (SELECT FROM pg_publication WHERE pubname = ANY (old_publications)) OR NOT EXISTS (
        SELECT FROM pg_publication p WHERE pubname = ANY (new_publications) AND obj_description(p.oid, 'pg_publication') = mark) THEN
        SET LOCAL lock_timeout = '5s';
        EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', outbox);
        written := pg_current_wal_insert_lsn();
        IF current_setting('server_version_num')::int >= 170000 THEN -- to flush the WAL: before that, no slot confirms it
            written := pg_logical_emit_message(false, 'outboxcdc', '', true);
        END IF;
        wrong := coalesce(
            (SELECT string_agg(format('publication %s does not exist', name), ', ' ORDER BY name) || again
               FROM unnest(new_publications) name WHERE NOT EXISTS (SELECT FROM pg_publication WHERE pubname = name)),
            CASE WHEN NOT EXISTS (SELECT FROM pg_partition_tree(to_regclass(divided)) WHERE level > 0)
                 THEN format('there is no table %s with partitions', divided) || again END,
            (SELECT string_agg(format('partition %s is in %s publications: %s', leaf, cardinality(names), names), ', ' ORDER BY leaf) || again
               FROM (SELECT relid AS leaf, ARRAY(
                         SELECT pubname::text FROM pg_publication p WHERE pubname = ANY (new_publications || 'no_events'::text) AND pubinsert AND EXISTS (
                             SELECT FROM pg_publication_rel r WHERE prpubid = p.oid AND prrelid IN (SELECT pg_partition_ancestors(relid))
                                AND to_jsonb(r)->>'prqual' IS NULL AND coalesce(to_jsonb(r)->>'prexcept', 'false') = 'false') ORDER BY 1) AS names
                       FROM pg_partition_tree(to_regclass(divided)) WHERE isleaf) leaves
              WHERE cardinality(names) <> 1),
            (SELECT format('table %s has no ', outbox) || string_agg(what, ', ' ORDER BY what) || ': correct --from, or the settings of slot, publication and table'
               FROM (SELECT 'slot ' || name FROM unnest(old_slots) name WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = name)
                     UNION ALL SELECT 'publication ' || name FROM unnest(old_publications) name WHERE NOT EXISTS (
                         SELECT FROM pg_publication, pg_get_publication_tables(pubname::text) published WHERE pubname = name AND published.relid IN (
                             SELECT outbox UNION ALL SELECT relid FROM pg_partition_tree(outbox)))) missing (what)),
            (SELECT 'no daemon reads slot ' || string_agg(name, ', ') || ': start it, and repeat this script'
               FROM unnest(old_slots) name WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = name AND active)),
            CASE WHEN EXISTS (SELECT FROM pg_replication_slots, pg_publication p JOIN pg_publication_rel r ON prpubid = p.oid
                               WHERE slot_name = ANY (old_slots) AND pubname = ANY (new_publications) AND age(catalog_xmin) >= least(age(p.xmin), age(r.xmin)))
                 THEN 'the slots do not know the publications yet: repeat this script' END,
            CASE WHEN current_setting('max_replication_slots')::int < cardinality(new_slots) + (SELECT count(*) FROM pg_replication_slots WHERE slot_name <> ALL (new_slots))
                 THEN 'max_replication_slots is too small' END,
            (SELECT 'a daemon reads slot ' || string_agg(name, ', ') || ': stop it'
               FROM unnest(new_slots) name WHERE EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = name AND active)),
            (SELECT format('role %s does not own ', current_user) || string_agg(what, ', ' ORDER BY what) || ': run this as another role'
               FROM (SELECT 'publication ' || pubname, pubowner FROM pg_publication WHERE pubname = ANY (old_publications || new_publications)) objects (what, owner) WHERE NOT pg_has_role(owner, 'USAGE')));
        IF wrong IS NOT NULL THEN
            RAISE EXCEPTION '%; nothing was changed', wrong;
        END IF;
        PERFORM pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = ANY (new_slots);
        FOR i IN 1..300 LOOP -- an older server flushes it within 20 s
            SELECT bool_and(confirmed_flush_lsn >= written) INTO done FROM pg_replication_slots WHERE slot_name = ANY (old_slots);
            EXIT WHEN done;
            PERFORM pg_sleep(0.1);
        END LOOP;
        IF NOT done THEN
            RAISE EXCEPTION 'the slots have not confirmed everything: do all daemons deliver? Nothing was changed: repeat this script';
        END IF;
        RAISE NOTICE 'stop the old daemons now';
        FOR i IN 1..600 LOOP
            SELECT count(*) = cardinality(old_slots) AND NOT bool_or(active) INTO done FROM pg_replication_slots WHERE slot_name = ANY (old_slots);
            EXIT WHEN done;
            PERFORM pg_sleep(0.1);
        END LOOP;
        IF NOT done THEN
            RAISE EXCEPTION 'a daemon still reads its slot: nothing was changed; repeat this script';
        END IF;
        PERFORM pg_copy_logical_replication_slot(old_slots[1]::name, name::name) FROM unnest(new_slots) name
     WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = name);
        EXECUTE (SELECT string_agg(format('COMMENT ON PUBLICATION %I IS %L;', name, mark), '') FROM unnest(new_publications) name)
             || (SELECT string_agg(format('DROP PUBLICATION %I;', name), '') FROM unnest(old_publications) name);
        COMMIT;
    END IF;
    SELECT string_agg(name, ', ') INTO wrong FROM unnest(new_slots) name
     WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = name OR slot_name = old_slots[1] AND wal_status IS DISTINCT FROM 'lost');
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'slot % was dropped, or its source is lost, after the hand-over: run outboxcdc recover with the settings of its daemon', wrong;
    END IF;
    PERFORM pg_copy_logical_replication_slot(old_slots[1]::name, name::name) FROM unnest(new_slots) name
     WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = name);
    PERFORM pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = ANY (old_slots);
    RAISE NOTICE 'the slots of the new daemons exist: start them';
END $outboxcdc$;
