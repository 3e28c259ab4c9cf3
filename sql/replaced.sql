{{- /* What a table must have, and must not have, to replace another one: entries of the list of handover.sql. */ -}}
{{- define "compared" }}(attname <> {{ literal .LapColumn }} OR outbox NOT IN (SELECT partrelid FROM pg_partitioned_table)){{ end -}}
{{- define "replaced" }}
            (WITH columns AS (
                 SELECT *, atthasdef OR attidentity <> '' AS has_default FROM pg_attribute WHERE attrelid IN (outbox, beside) AND attnum > 0 AND NOT attisdropped AND {{ template "compared" . }}
             ), features (of_table, what, gives, refuses) AS (
                 SELECT attrelid, format('column %I %s', attname, format_type(atttypid, atttypmod)), true, false FROM columns
                 UNION ALL SELECT attrelid, format('a default of %I', attname), true, false FROM columns WHERE has_default
                 UNION ALL SELECT attrelid, format('GENERATED ALWAYS of %I', attname), false, true FROM columns WHERE attidentity = 'a' OR attgenerated <> ''
                 UNION ALL SELECT attrelid, format('NOT NULL of %I', attname), false, NOT has_default OR attname IN (SELECT attname FROM columns WHERE attrelid = outbox) FROM columns WHERE attnotnull
                 UNION ALL SELECT conrelid, replace(pg_get_constraintdef(oid), ' NOT VALID', ''), false, true FROM pg_constraint WHERE contype IN ('c', 'f', 'x')
                 UNION ALL SELECT indrelid, concat('unique index (', (SELECT string_agg(pg_get_indexdef(indexrelid, n, true), ', ' ORDER BY n) FROM generate_series(1, indnkeyatts) n), ')',
                     ' WHERE ' || pg_get_expr(indpred, indrelid)), false, true FROM pg_index WHERE indisunique AND NOT indisprimary
                 UNION ALL SELECT confrelid, format('foreign key %I of %s, which it cannot have', conname, conrelid::regclass), true, false
                     FROM pg_constraint WHERE contype = 'f' AND conparentid = 0
                 UNION ALL SELECT ev_class, format('rule %I', rulename), true, true FROM pg_rewrite
                 UNION ALL SELECT tgrelid, format('trigger %I', tgname), true, true FROM pg_trigger WHERE NOT tgisinternal
                 UNION ALL SELECT polrelid, concat(format('policy %I', polname), ' FOR ' || polcmd::text, CASE WHEN polpermissive THEN '' ELSE ' RESTRICTIVE' END, ' TO ' || polroles::regrole[]::text,
                     ' USING ' || pg_get_expr(polqual, polrelid), ' WITH CHECK ' || pg_get_expr(polwithcheck, polrelid)), true, true FROM pg_policy
                 UNION ALL SELECT oid, 'row level security', true, true FROM pg_class WHERE relrowsecurity
                 UNION ALL SELECT oid, 'FORCE ROW LEVEL SECURITY', true, true FROM pg_class WHERE relforcerowsecurity
                 UNION ALL SELECT oid, format('owner %s, to whom row level security does not apply', relowner::regrole), true, false FROM pg_class WHERE relrowsecurity AND NOT relforcerowsecurity)
             SELECT string_agg(format(CASE WHEN of_table = outbox THEN 'table %s lacks %s: add it, or drop it from %s' ELSE 'table %s has %s: drop it, or add it to %s' END,
                        divided, what, outbox), '; ' ORDER BY what)
               FROM features f WHERE (of_table = outbox AND gives OR of_table = beside AND refuses)
                AND NOT EXISTS (SELECT FROM features WHERE of_table IN (outbox, beside) AND of_table <> f.of_table AND what = f.what)),
            (WITH today AS (
                 SELECT NULL::name AS on_column, (aclexplode(coalesce(relacl, acldefault('r', relowner)))).* FROM pg_class WHERE oid = outbox
                 UNION ALL SELECT attname, (aclexplode(attacl)).* FROM pg_attribute WHERE attrelid = outbox AND {{ template "compared" . }} AND NOT attisdropped
             ), lacking (privilege, what, grantee) AS (
                 SELECT concat(privilege_type, ' (' || quote_ident(on_column) || ')'), divided, grantee FROM today
                  WHERE NOT CASE WHEN on_column IS NULL THEN has_table_privilege(grantee, beside, privilege_type) ELSE has_column_privilege(grantee, beside, on_column, privilege_type) END
                 UNION SELECT 'USAGE', format('SEQUENCE %s', s.oid::regclass), grantee
                   FROM today, pg_attrdef d JOIN pg_depend ON classid = 'pg_attrdef'::regclass AND objid = d.oid JOIN pg_class s ON refclassid = 'pg_class'::regclass AND s.oid = refobjid
                  WHERE privilege_type = 'INSERT' AND adrelid = beside AND s.relkind = 'S' AND NOT has_sequence_privilege(grantee, s.oid, 'USAGE, UPDATE'))
             SELECT string_agg(format('GRANT %s ON %s TO %s', privilege, what, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END), '; ' ORDER BY what, privilege, grantee)
                    || format(': they have this on %s today', outbox)
               FROM lacking)
{{- end }}
