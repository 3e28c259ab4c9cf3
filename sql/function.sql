{{- if .MessageFunction -}}
-- Optional: writes an event as a logical message, in the caller's transaction, and returns the event's id. There is no row to delete
-- or to query later. The record has the same bytes as one from a table with jsonb columns.
CREATE OR REPLACE FUNCTION {{ table .FunctionSchema "outbox_emit" }}(
    aggregate_type text, aggregate_id text, event_type text, payload jsonb, headers jsonb DEFAULT '{}'
) RETURNS uuid LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $outboxcdc$
DECLARE
    id uuid := gen_random_uuid();
BEGIN
    IF aggregate_type IS NULL OR aggregate_id IS NULL OR event_type IS NULL THEN
        RAISE EXCEPTION 'outbox_emit: aggregate_type, aggregate_id and event_type must not be NULL' USING ERRCODE = 'not_null_violation';
    END IF;
    IF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'outbox_emit: headers is no JSON object' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_logical_emit_message(true, {{ literal .Messages }}, convert_to(
        '{"id":"' || id
        || '","aggregate_type":' || to_json(aggregate_type)::text
        || ',"aggregate_id":' || to_json(aggregate_id)::text
        || ',"event_type":' || to_json(event_type)::text
        || coalesce(',"payload":' || payload::text, '')
        || CASE WHEN headers <> '{}' THEN ',"headers":' || headers::text ELSE '' END
        || ',"created_at":"' || to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00"}', 'UTF8'));
    RETURN id;
END
$outboxcdc$;
{{- else -}}
-- Optional: writes an event as a row of the outbox, in the caller's transaction, and returns the event's id.
CREATE OR REPLACE FUNCTION {{ table .FunctionSchema "outbox_emit" }}(
    aggregate_type text, aggregate_id text, event_type text, payload jsonb, headers jsonb DEFAULT '{}'
) RETURNS uuid LANGUAGE plpgsql AS $outboxcdc$
#variable_conflict use_variable
DECLARE
    id uuid := gen_random_uuid();
BEGIN
    IF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'outbox_emit: headers is no JSON object' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO {{ table .Table.Schema .Table.Name }} ({{ ident .Table.Columns.ID }}, {{ ident .Table.Columns.AggregateType }}, {{ ident .Table.Columns.AggregateID }}, {{ ident .Table.Columns.EventType }}, {{ ident .Table.Columns.Payload }}, {{ ident .Table.Columns.Headers }})
    VALUES (id, aggregate_type, aggregate_id, event_type, payload, coalesce(headers, '{}'));
    RETURN id;
END
$outboxcdc$;
{{- end }}
