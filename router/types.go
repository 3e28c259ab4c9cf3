package router

import "fmt"

// Names of types by OID (PostgreSQL, src/include/catalog/pg_type.dat).
var typeNames = map[uint32]string{
	boolOID: "boolean", byteaOID: "bytea", 18: "\"char\"", 19: "name", int8OID: "bigint", int2OID: "smallint", int4OID: "integer",
	textOID: "text", 26: "oid", jsonOID: "json", 142: "xml", float4OID: "real", float8OID: "double precision", 869: "inet", 1009: "text[]",
	1042: "character", varcharOID: "character varying", 1082: "date", 1083: "time", timestampOID: "timestamp", timestamptzOID: "timestamptz",
	1186: "interval", 1266: "timetz", 1560: "bit", numericOID: "numeric", 2950: "uuid", jsonbOID: "jsonb",
}

// typeName returns the name of a type for error texts.
func typeName(oid uint32) string {
	if name := typeNames[oid]; name != "" {
		return name
	}
	return fmt.Sprintf("of the type with OID %d", oid)
}
