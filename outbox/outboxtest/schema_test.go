package outboxtest

import (
	"encoding/json"
	"reflect"
	"testing"
)

type embedded struct {
	Deep   int
	Hidden int
	Both   int
}

type pointed struct {
	Pointed int
	Both    int
}

type outer struct {
	embedded
	*pointed
	Named   embedded `json:"named"`
	Hidden  string
	Quoted  int            `json:",string"`
	Maybe   *bool          `json:",string"`
	Skipped int            `json:"-"`
	private int            //nolint:unused // must not be in the schema
	Omit    map[string]int `json:",omitempty"`
	Zero    embedded       `json:",omitzero"`
	Never   embedded       `json:",omitempty"`
	Fixed   [2]uint8       `json:",omitempty"`
	Number  json.Number
}

func TestSchema(t *testing.T) {
	_ = outer{}.private
	const object = `{"type":"object","properties":{"Both":{"type":"integer"},"Deep":{"type":"integer"},"Hidden":{"type":"integer"}},"required":["Both","Deep","Hidden"]}`
	const want = `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{` +
		`"Deep":{"type":"integer"},"Fixed":{"type":"array","items":{"type":"integer"}},"Hidden":{"type":"string"},` +
		`"Maybe":{"type":["string","null"]},"Never":` + object + `,"Number":{"type":"number"},` +
		`"Omit":{"type":"object","additionalProperties":{"type":"integer"}},"Pointed":{"type":"integer"},` +
		`"Quoted":{"type":"string"},"Zero":` + object + `,"named":` + object + `},` +
		`"required":["Deep","Fixed","Hidden","Maybe","Never","Number","Quoted","named"]}`
	got, err := json.Marshal(schemaOf(reflect.TypeFor[outer]()))
	if err != nil || string(got) != want {
		t.Errorf("%v\ngot  %s\nwant %s", err, got, want)
	}
}
