{{- define "copy" }}PERFORM pg_copy_logical_replication_slot(old_slots[1]::name, name::name) FROM unnest(new_slots) name
     WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = name);{{ end -}}
-- Hand over, while writers wait{{ if .HandOver.Whole }}, and readers of the table, too{{ end }}. First this checks that the publications of the new daemons together have every
-- partition exactly once, and that the slots know them. It waits until the old daemons have delivered everything, says that they are to
-- be stopped, and waits for that. The new slots are copies of an old one: everything after this moment is in them. It drops the old
-- publications, so that an old daemon that is started again delivers nothing.
--
-- If it fails, or its session ends at any moment, repeat it, and do what it says. Until it has dropped the publications, nothing is changed.
DO $outboxcdc$ DECLARE
    old_slots text[] := {{ array .HandOver.OldSlots }};
    new_slots text[] := {{ array .HandOver.NewSlots }};
    old_publications text[] := {{ array .HandOver.OldPublications }};
    new_publications text[] := {{ array .HandOver.NewPublications }};
    outbox regclass := {{ literal (table .Table.Schema .Table.Name) }};
    divided text := {{ literal (table .HandOver.Divided.Schema .HandOver.Divided.Name) }}; -- the table with the partitions
    mark text := format('handed over from slots %s, publications %s', old_slots, old_publications);
    again text := '; drop the publications of the new daemons that exist, and repeat step 1 of docs/scale.md';
{{- if .HandOver.Whole }}
    replaced oid[]; -- the old table with its partitions, indexes and sequences
{{- end }}
    written pg_lsn;
    wrong text;
    done boolean;
BEGIN
    COMMIT; -- which fails in a transaction
    IF EXISTS (SELECT FROM pg_publication WHERE pubname = ANY (old_publications)) OR NOT EXISTS (
        SELECT FROM pg_publication p WHERE pubname = ANY (new_publications) AND obj_description(p.oid, 'pg_publication') = mark) THEN
        SET LOCAL lock_timeout = '5s';
{{- if .HandOver.Whole }}
        -- A weaker lock would have to become this one later, which is a deadlock with a transaction that has read the table and then writes.
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', concat_ws(', ', outbox, to_regclass(divided)));
{{- else }}
        EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', outbox);
{{- end }}
{{- if .HandOver.Whole }}
        WITH tables (oid) AS (SELECT outbox UNION SELECT relid FROM pg_partition_tree(outbox))
        SELECT array_agg(oid) INTO replaced
          FROM (SELECT oid FROM tables UNION SELECT indexrelid FROM pg_index WHERE indrelid IN (SELECT oid FROM tables)
                UNION SELECT objid FROM pg_depend WHERE classid = 'pg_class'::regclass AND refobjid IN (SELECT oid FROM tables) AND deptype IN ('a', 'i')) all_of_it;
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
               FROM (SELECT 'publication ' || pubname, pubowner FROM pg_publication WHERE pubname = ANY (old_publications || new_publications)
{{- if .HandOver.Whole }}
                     UNION ALL SELECT format('table %s', oid::regclass), relowner FROM pg_class WHERE oid IN (outbox, to_regclass(divided))
{{- end }}) objects (what, owner) WHERE NOT pg_has_role(owner, 'USAGE'))
{{- if .HandOver.Whole }},
            (SELECT string_agg(format('%s exists', name::regclass), ', ') || ': rename or drop it'
               FROM unnest({{ array .HandOver.Taken }}) name WHERE to_regclass(name) <> ALL (replaced)),
            (SELECT format('table %s has not the columns of %s: ', divided, outbox) || string_agg(format('%I %s', attname, format_type(atttypid, atttypmod)), ', ')
                    || ': let it have them, with the types of today'
               FROM pg_attribute a WHERE attrelid = outbox AND attnum > 0 AND NOT attisdropped AND attname <> {{ literal .LapColumn }} AND NOT EXISTS (
                   SELECT FROM pg_attribute b WHERE b.attrelid = to_regclass(divided) AND b.attname = a.attname AND b.atttypid = a.atttypid)),
            (SELECT 'GRANT INSERT ON ' || divided || ' TO ' || string_agg(DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END, ', ')
                    || ': they may write today'
               FROM (SELECT (aclexplode(coalesce(relacl, acldefault('r', relowner)))).* FROM pg_class WHERE oid = outbox
                     UNION ALL SELECT (aclexplode(attacl)).* FROM pg_attribute WHERE attrelid = outbox) today
              WHERE privilege_type = 'INSERT' AND CASE grantee
                    WHEN 0 THEN NOT has_table_privilege('public', to_regclass(divided), 'INSERT')
                    ELSE NOT has_table_privilege(grantee, to_regclass(divided), 'INSERT') END)
{{- end }});
{{- if .HandOver.Whole }}
        IF wrong IS NULL THEN
            EXECUTE format('SELECT %L FROM (SELECT FROM %s LIMIT 1) row', format('table %s has rows, which no daemon would deliver: empty it', divided), divided) INTO wrong;
        END IF;
{{- end }}
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
{{- if .HandOver.Whole }}
        -- What belongs to the old table makes room for the names of the new one.
        EXECUTE (SELECT string_agg(format('ALTER %s %s RENAME TO %I;', CASE relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'i' THEN 'INDEX' ELSE 'TABLE' END, c.oid::regclass, relname || '_before'), '')
                   FROM pg_class c WHERE c.oid = outbox OR c.oid IN (SELECT to_regclass(name) FROM unnest({{ array .HandOver.Taken }}) name));
        ALTER TABLE {{ table .HandOver.Divided.Schema .HandOver.Divided.Name }} SET SCHEMA {{ ident .Table.Schema }};
{{- range .HandOver.Leaves }}
        ALTER TABLE {{ table .Schema .Name }} SET SCHEMA {{ ident $.Table.Schema }};
{{- end }}
        EXECUTE format('ALTER TABLE %s ADD CONSTRAINT replaced CHECK (false) NOT VALID', outbox);
{{- else }}
        {{ template "copy" }}
{{- end }}
        EXECUTE (SELECT string_agg(format('COMMENT ON PUBLICATION %I IS %L;', name, mark), '') FROM unnest(new_publications) name)
             || (SELECT string_agg(format('DROP PUBLICATION %I;', name), '') FROM unnest(old_publications) name);
        COMMIT;
    END IF;
    SELECT string_agg(name, ', ') INTO wrong FROM unnest(new_slots) name
     WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = name OR slot_name = old_slots[1] AND wal_status IS DISTINCT FROM 'lost');
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'slot % was dropped, or its source is lost, after the hand-over: run outboxcdc recover with the settings of its daemon', wrong;
    END IF;
    {{ template "copy" }}
    PERFORM pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = ANY (old_slots);
    RAISE NOTICE 'the slots of the new daemons exist: start them';
END $outboxcdc$;
