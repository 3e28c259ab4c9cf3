-- Settings of this session, which those of the role and the database must not change: nothing ends the statements, and what they say is shown.
SET search_path = pg_catalog, pg_temp;
SET statement_timeout = 0;
SET client_min_messages = notice;
SET synchronous_commit = on;
SET default_transaction_read_only = off;
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
-- be stopped, and waits for that. It drops the old publications, so that an old daemon that is started again delivers nothing. After that
-- it copies the new slots from an old one, as it was before: everything since is in them, and no new daemon can deliver anything before.
--
-- If it fails, or its session ends at any moment, repeat it, and do what it says. Until it has dropped the publications, nothing is changed.
DO $outboxcdc$ DECLARE
    old_slots text[] := ARRAY['outboxcdc_0_of_4', 'outboxcdc_1_of_4', 'outboxcdc_2_of_4', 'outboxcdc_3_of_4'];
    new_slots text[] := ARRAY['outboxcdc_0_of_2', 'outboxcdc_1_of_2'];
    old_publications text[] := ARRAY['outboxcdc_0_of_4', 'outboxcdc_1_of_4', 'outboxcdc_2_of_4', 'outboxcdc_3_of_4'];
    new_publications text[] := ARRAY['outboxcdc_0_of_2', 'outboxcdc_1_of_2'];
    outbox regclass := '"public"."outbox"';
    divided text := '"public"."outbox"'; -- the table with the partitions
    source text := 'outboxcdc_0_of_0'; -- the slot that the new ones are copied from
    mark text := format('handed over from slot %s, publications %s', source, old_publications);
    again text := '; drop the publications of the new daemons that exist, and repeat step 1 of docs/scale.md';
    trial text := 'outboxcdc_' || pg_backend_pid();
    written pg_lsn;
    handed pg_lsn;
    missing text[];
    wrong text;
    done boolean;
BEGIN
    COMMIT; -- which fails in a transaction
    PERFORM pg_advisory_xact_lock(hashtextextended('outboxcdc hand-over', 0)); -- another session of this script may not have ended
    IF EXISTS (SELECT FROM pg_publication WHERE pubname = ANY (old_publications)) OR NOT EXISTS (
        SELECT FROM pg_publication p WHERE pubname = ANY (new_publications) AND starts_with(obj_description(p.oid, 'pg_publication'), mark)) THEN
        -- Whether this role may copy slots, and the server has room for one more, shows before anything waits.
        PERFORM pg_copy_logical_replication_slot(slot_name, trial::name, true) FROM pg_replication_slots
         WHERE slot_name = old_slots[1] AND database = current_database();
        PERFORM pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = trial;
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
               FROM (SELECT 'slot ' || name FROM unnest(old_slots) name WHERE NOT EXISTS (
                         SELECT FROM pg_replication_slots WHERE slot_name = name AND database = current_database())
                     UNION ALL SELECT 'publication ' || name FROM unnest(old_publications) name WHERE NOT EXISTS (
                         SELECT FROM pg_publication, pg_get_publication_tables(pubname::text) published WHERE pubname = name AND published.relid IN (
                             SELECT outbox UNION ALL SELECT relid FROM pg_partition_tree(outbox)))) missing (what)),
            (SELECT 'no daemon reads slot ' || string_agg(name, ', ') || ': start it, and repeat this script'
               FROM unnest(old_slots) name WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = name AND active)),
            CASE WHEN EXISTS (SELECT FROM pg_replication_slots, pg_publication p JOIN pg_publication_rel r ON prpubid = p.oid
                               WHERE slot_name = ANY (old_slots) AND pubname = ANY (new_publications) AND age(catalog_xmin) >= least(age(p.xmin), age(r.xmin)))
                 THEN 'the slots do not know the publications yet: repeat this script' END,
            CASE WHEN current_setting('max_replication_slots')::int < cardinality(new_slots) + 1 + (SELECT count(*) FROM pg_replication_slots WHERE slot_name <> ALL (new_slots || source))
                 THEN 'max_replication_slots is too small' END,
            CASE WHEN current_setting('max_wal_senders')::int < cardinality(new_slots) - cardinality(old_slots) + (SELECT count(*) FROM pg_stat_replication)
                 THEN 'max_wal_senders is too small' END,
            (SELECT format('slot %s is another one than this needs: drop it, or choose another name', string_agg(slot_name, ', ')) FROM pg_replication_slots
              WHERE slot_name = ANY (new_slots || source) AND (database, plugin) IS DISTINCT FROM (current_database(), 'pgoutput'::name) HAVING count(*) > 0),
            (SELECT 'a daemon reads slot ' || string_agg(name, ', ') || ': stop it'
               FROM unnest(new_slots || source) name WHERE EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = name AND active)),
            (SELECT format('role %s does not own ', current_user) || string_agg(what, ', ' ORDER BY what) || ': run this as another role'
               FROM (SELECT 'publication ' || pubname, pubowner FROM pg_publication WHERE pubname = ANY (old_publications || new_publications)) objects (what, owner)
              WHERE NOT pg_has_role(owner, 'USAGE')));
        IF wrong IS NOT NULL THEN
            RAISE EXCEPTION '%; nothing was changed', wrong;
        END IF;
        PERFORM pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = ANY (new_slots || source);
        FOR i IN 1..300 LOOP -- an older server flushes it within 20 s
            SELECT bool_and(confirmed_flush_lsn >= written) INTO done FROM pg_replication_slots WHERE slot_name = ANY (old_slots);
            EXIT WHEN done;
            PERFORM pg_sleep(0.1);
        END LOOP;
        IF done IS NOT TRUE THEN
            RAISE EXCEPTION 'the slots have not confirmed everything: do all daemons deliver? Nothing was changed: repeat this script';
        END IF;
        RAISE NOTICE 'stop the old daemons now';
        FOR i IN 1..600 LOOP
            SELECT count(*) = cardinality(old_slots) AND NOT bool_or(active) INTO done FROM pg_replication_slots WHERE slot_name = ANY (old_slots);
            EXIT WHEN done;
            PERFORM pg_sleep(0.1);
        END LOOP;
        IF done IS NOT TRUE THEN
            RAISE EXCEPTION 'a daemon still reads its slot: nothing was changed; repeat this script';
        END IF;
        -- Before the transaction writes: later it could not. No daemon reads this slot, so nothing moves it.
        PERFORM pg_copy_logical_replication_slot(old_slots[1]::name, source::name);
        EXECUTE (SELECT string_agg(format('COMMENT ON PUBLICATION %I IS %L;', name, format('%s, at %s', mark, pg_current_wal_insert_lsn())), '') FROM unnest(new_publications) name)
             || (SELECT string_agg(format('DROP PUBLICATION %I;', name), '') FROM unnest(old_publications) name);
        COMMIT;
        PERFORM pg_advisory_xact_lock(hashtextextended('outboxcdc hand-over', 0));
    END IF;
    IF NOT EXISTS (SELECT FROM pg_publication p WHERE pubname = ANY (new_publications) AND obj_description(p.oid, 'pg_publication') = mark || ', done') THEN
        SELECT string_agg(slot_name, ', ') INTO wrong FROM (SELECT * FROM pg_replication_slots WHERE database = current_database() AND plugin = 'pgoutput') slots WHERE slot_name = ANY (old_slots || new_slots || source) AND active;
        IF wrong IS NOT NULL THEN
            RAISE EXCEPTION 'a daemon reads slot %: stop it, and repeat this script', wrong;
        END IF;
        handed := (SELECT max(substring(obj_description(oid, 'pg_publication') FROM ', at ([0-9A-F]+/[0-9A-F]+)$')::pg_lsn) FROM pg_publication WHERE pubname = ANY (new_publications));
        IF EXISTS (SELECT FROM (SELECT * FROM pg_replication_slots WHERE database = current_database() AND plugin = 'pgoutput') slots WHERE slot_name = source AND wal_status IS DISTINCT FROM 'lost' AND confirmed_flush_lsn <= handed) THEN
            -- A slot that was created since lacks rows.
            PERFORM pg_drop_replication_slot(slot_name) FROM (SELECT * FROM pg_replication_slots WHERE database = current_database() AND plugin = 'pgoutput') slots WHERE slot_name = ANY (new_slots) AND confirmed_flush_lsn > handed;
            missing := ARRAY(SELECT name FROM unnest(new_slots) name WHERE NOT EXISTS (SELECT FROM (SELECT * FROM pg_replication_slots WHERE database = current_database() AND plugin = 'pgoutput') slots WHERE slot_name = name));
            PERFORM pg_copy_logical_replication_slot(slot_name, name::name) FROM unnest(missing) name, (SELECT * FROM pg_replication_slots WHERE database = current_database() AND plugin = 'pgoutput') slots WHERE slot_name = source AND wal_status IS DISTINCT FROM 'lost' AND confirmed_flush_lsn <= handed;
            IF NOT EXISTS (SELECT FROM (SELECT * FROM pg_replication_slots WHERE database = current_database() AND plugin = 'pgoutput') slots WHERE slot_name = source AND wal_status IS DISTINCT FROM 'lost' AND confirmed_flush_lsn <= handed) THEN -- and may have been read before it was copied
                PERFORM pg_drop_replication_slot(slot_name) FROM (SELECT * FROM pg_replication_slots WHERE database = current_database() AND plugin = 'pgoutput') slots WHERE slot_name = ANY (missing);
            END IF;
        END IF;
        PERFORM pg_drop_replication_slot(slot_name) FROM (SELECT * FROM pg_replication_slots WHERE database = current_database() AND plugin = 'pgoutput') slots WHERE slot_name = ANY (old_slots || source);
        EXECUTE (SELECT string_agg(format('COMMENT ON PUBLICATION %I IS %L;', name, mark || ', done'), '') FROM unnest(new_publications) name);
        COMMIT;
    END IF;
    SELECT string_agg(name, ', ' ORDER BY name) INTO wrong FROM unnest(new_slots) name WHERE NOT EXISTS (SELECT FROM (SELECT * FROM pg_replication_slots WHERE database = current_database() AND plugin = 'pgoutput') slots WHERE slot_name = name);
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'slot % was dropped, or the slot that it is copied from was read or is lost, after the hand-over: run outboxcdc recover with the settings of its daemon', wrong;
    END IF;
    RAISE NOTICE 'the slots of the new daemons exist: start them';
END $outboxcdc$;
