{{- define "made" }}new_slots{{ if not .HandOver.Whole }} || source{{ end }}{{ end -}}
{{- define "rename" }}EXECUTE (SELECT string_agg(format('ALTER TABLE %s RENAME TO %I;', oid::regclass, relname || '_before'), '') FROM pg_class WHERE oid = ANY (renamed))
             || (SELECT string_agg(format('ALTER TABLE %s SET SCHEMA %s;', oid::regclass, namespace), '') FROM pg_class WHERE oid = ANY (moved) AND relkind IN ('r', 'p'));
        EXECUTE format('ALTER TABLE %s ADD CONSTRAINT replaced CHECK (false) NOT VALID', outbox);{{ end -}}
{{- define "slots" }}(SELECT * FROM pg_replication_slots WHERE database = current_database() AND plugin = 'pgoutput') slots{{ end -}}
{{- define "usable" }}{{ template "slots" }} WHERE slot_name = source AND wal_status IS DISTINCT FROM 'lost' AND confirmed_flush_lsn <= handed{{ end -}}
-- Hand over, while writers wait{{ if .HandOver.Whole }}, and readers of the table, too{{ end }}. First this checks that the publications of the new daemons together have every
-- partition exactly once, and that the slots know them. It waits until the old daemons have delivered everything, says that they are to
-- be stopped, and waits for that. It drops the old publications, so that an old daemon that is started again delivers nothing. After that
-- it copies the new slots from an old one{{ if not .HandOver.Whole }}, as it was before{{ end }}: everything since is in them, and no new daemon can deliver anything before.
--
-- If it fails, or its session ends at any moment, repeat it, and do what it says. Until it has dropped the publications, nothing is changed.
DO $outboxcdc$ DECLARE
    old_slots text[] := {{ array .HandOver.OldSlots }};
    new_slots text[] := {{ array .HandOver.NewSlots }};
    old_publications text[] := {{ array .HandOver.OldPublications }};
    new_publications text[] := {{ array .HandOver.NewPublications }};
    outbox regclass := {{ literal (table .Table.Schema .Table.Name) }};
    divided text := {{ literal (table .HandOver.Divided.Schema .HandOver.Divided.Name) }}; -- the table with the partitions
    source text := {{ literal .HandOver.Source }}; -- the slot that the new ones are copied from
    mark text := format('handed over from slot %s, publications %s', source, old_publications);
    again text := '; drop the publications of the new daemons that exist, and repeat step 1 of docs/scale.md';
{{- if .HandOver.Whole }}
    beside oid := to_regclass(divided);
    namespace regnamespace := (SELECT relnamespace FROM pg_class WHERE oid = outbox);
    replaced oid[]; -- the old table with its partitions, indexes and sequences
    moved oid[]; -- the new one with its own
    renamed oid[]; -- what of the old one has a name that the new one needs; a sequence can be in use by a writer that waits
{{- end }}
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
{{- if .HandOver.Whole }}
        -- A weaker lock would have to become this one later, which is a deadlock with a transaction that has read the table and then writes.
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', concat_ws(', ', outbox, beside::regclass));
{{- else }}
        EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', outbox);
{{- end }}
{{- if .HandOver.Whole }}
        WITH tables (root, oid) AS (
            SELECT root, root FROM unnest(ARRAY[outbox, beside]) root UNION SELECT root, relid FROM unnest(ARRAY[outbox, beside]) root, pg_partition_tree(root)
        ), parts AS (
            SELECT * FROM tables UNION SELECT root, indexrelid FROM tables JOIN pg_index ON indrelid = oid
            UNION SELECT root, objid FROM tables JOIN pg_depend ON refobjid = oid AND classid = 'pg_class'::regclass AND deptype IN ('a', 'i'))
        SELECT array_agg(oid) FILTER (WHERE root = outbox), array_agg(oid) FILTER (WHERE root = beside) INTO replaced, moved FROM parts;
        renamed := ARRAY(SELECT oid FROM pg_class WHERE oid = ANY (replaced) AND relnamespace = namespace AND relname IN (SELECT relname FROM pg_class WHERE oid = ANY (moved))
            AND (relkind <> 'S' OR oid = to_regclass({{ literal .Sequence }})));
{{- end }}
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
            CASE WHEN current_setting('max_replication_slots')::int < cardinality(new_slots){{ if not .HandOver.Whole }} + 1{{ end }} + (SELECT count(*) FROM pg_replication_slots WHERE slot_name <> ALL ({{ template "made" . }}))
                 THEN 'max_replication_slots is too small' END,
            CASE WHEN current_setting('max_wal_senders')::int < cardinality(new_slots) - cardinality(old_slots) + (SELECT count(*) FROM pg_stat_replication)
                 THEN 'max_wal_senders is too small' END,
            (SELECT format('slot %s is another one than this needs: drop it, or choose another name', string_agg(slot_name, ', ')) FROM pg_replication_slots
              WHERE slot_name = ANY ({{ template "made" . }}) AND (database, plugin) IS DISTINCT FROM (current_database(), 'pgoutput'::name) HAVING count(*) > 0),
            (SELECT 'a daemon reads slot ' || string_agg(name, ', ') || ': stop it'
               FROM unnest({{ template "made" . }}) name WHERE EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = name AND active)),
            (SELECT format('role %s does not own ', current_user) || string_agg(what, ', ' ORDER BY what) || ': run this as another role'
               FROM (SELECT 'publication ' || pubname, pubowner FROM pg_publication WHERE pubname = ANY (old_publications || new_publications)) objects (what, owner)
              WHERE NOT pg_has_role(owner, 'USAGE'))
{{- if .HandOver.Whole }},
{{ template "replaced" . }}
{{- end }});
{{- if .HandOver.Whole }}
        IF wrong IS NULL THEN
            EXECUTE format('SELECT %L FROM (SELECT FROM %s LIMIT 1) row', format('table %s has rows, which no daemon would deliver: empty it', divided), divided) INTO wrong;
        END IF;
{{- end }}
        IF wrong IS NOT NULL THEN
            RAISE EXCEPTION '%; nothing was changed', wrong;
        END IF;
        PERFORM pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = ANY ({{ template "made" . }});
        FOR i IN 1..300 LOOP -- an older server flushes it within 20 s
            SELECT bool_and(confirmed_flush_lsn >= written) INTO done FROM pg_replication_slots WHERE slot_name = ANY (old_slots);
            EXIT WHEN done;
            PERFORM pg_sleep(0.1);
        END LOOP;
        IF done IS NOT TRUE THEN
            RAISE EXCEPTION 'the slots have not confirmed everything: do all daemons deliver? Nothing was changed: repeat this script';
        END IF;
{{- if .HandOver.Whole }}
        -- What belongs to the old table makes room for the names of the new one. If that fails, it does so before the daemons are stopped, and
        -- not earlier, because the daemons confirm nothing until this transaction ends.
        {{ template "rename" . }}
{{- end }}
        RAISE NOTICE 'stop the old daemons now';
        FOR i IN 1..600 LOOP
            SELECT count(*) = cardinality(old_slots) AND NOT bool_or(active) INTO done FROM pg_replication_slots WHERE slot_name = ANY (old_slots);
            EXIT WHEN done;
            PERFORM pg_sleep(0.1);
        END LOOP;
        IF done IS NOT TRUE THEN
            RAISE EXCEPTION 'a daemon still reads its slot: nothing was changed; repeat this script';
        END IF;
{{- if not .HandOver.Whole }}
        -- Before the transaction writes: later it could not. No daemon reads this slot, so nothing moves it.
        PERFORM pg_copy_logical_replication_slot(old_slots[1]::name, source::name);
{{- end }}
        EXECUTE (SELECT string_agg(format('COMMENT ON PUBLICATION %I IS %L;', name, format('%s, at %s', mark, pg_current_wal_insert_lsn())), '') FROM unnest(new_publications) name)
             || (SELECT string_agg(format('DROP PUBLICATION %I;', name), '') FROM unnest(old_publications) name);
        COMMIT;
        PERFORM pg_advisory_xact_lock(hashtextextended('outboxcdc hand-over', 0));
    END IF;
    IF NOT EXISTS (SELECT FROM pg_publication p WHERE pubname = ANY (new_publications) AND obj_description(p.oid, 'pg_publication') = mark || ', done') THEN
        SELECT string_agg(slot_name, ', ') INTO wrong FROM {{ template "slots" }} WHERE slot_name = ANY (old_slots || new_slots || source) AND active;
        IF wrong IS NOT NULL THEN
            RAISE EXCEPTION 'a daemon reads slot %: stop it, and repeat this script', wrong;
        END IF;
        handed := (SELECT max(substring(obj_description(oid, 'pg_publication') FROM ', at ([0-9A-F]+/[0-9A-F]+)$')::pg_lsn) FROM pg_publication WHERE pubname = ANY (new_publications));
        IF EXISTS (SELECT FROM {{ template "usable" }}) THEN
            -- A slot that was created since lacks rows.
            PERFORM pg_drop_replication_slot(slot_name) FROM {{ template "slots" }} WHERE slot_name = ANY (new_slots) AND confirmed_flush_lsn > handed;
            missing := ARRAY(SELECT name FROM unnest(new_slots) name WHERE NOT EXISTS (SELECT FROM {{ template "slots" }} WHERE slot_name = name));
            PERFORM pg_copy_logical_replication_slot(slot_name, name::name) FROM unnest(missing) name, {{ template "usable" }};
            IF NOT EXISTS (SELECT FROM {{ template "usable" }}) THEN -- and may have been read before it was copied
                PERFORM pg_drop_replication_slot(slot_name) FROM {{ template "slots" }} WHERE slot_name = ANY (missing);
            END IF;
        END IF;
        PERFORM pg_drop_replication_slot(slot_name) FROM {{ template "slots" }} WHERE slot_name = ANY (old_slots || source);
        EXECUTE (SELECT string_agg(format('COMMENT ON PUBLICATION %I IS %L;', name, mark || ', done'), '') FROM unnest(new_publications) name);
        COMMIT;
    END IF;
    SELECT string_agg(name, ', ' ORDER BY name) INTO wrong FROM unnest(new_slots) name WHERE NOT EXISTS (SELECT FROM {{ template "slots" }} WHERE slot_name = name);
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'slot % was dropped, or the slot that it is copied from was read or is lost, after the hand-over: run outboxcdc recover with the settings of its daemon', wrong;
    END IF;
    RAISE NOTICE 'the slots of the new daemons exist: start them';
END $outboxcdc$;
