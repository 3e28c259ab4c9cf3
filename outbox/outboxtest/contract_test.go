package outboxtest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/outbox"
)

// kind is a kind with the payload of v.
type kind struct {
	eventType string
	version   int
	payload   any
}

func (k kind) AggregateType() string     { return "order" }
func (k kind) EventType() string         { return k.eventType }
func (k kind) SchemaVersion() int        { return k.version }
func (k kind) PayloadType() reflect.Type { return reflect.TypeOf(k.payload) }

var _ Kind = outbox.Kind[int]{}

type line struct {
	SKU string `json:"sku"`
	Qty int    `json:"qty"`
}

type before struct {
	Total float64          `json:"total"`
	Note  string           `json:"note,omitempty"`
	Lines []line           `json:"lines"`
	Tags  map[string]int   `json:"tags"`
	Any   json.RawMessage  `json:"any"`
	At    time.Time        `json:"at"`
	Maybe *int             `json:"maybe"`
	Tree  *tree            `json:"tree"`
	Root  tree             `json:"root"`
	More  map[string]*line `json:"more"`
	Code  textCode         `json:"code"`
	Own   opaque           `json:"own"`
	Blob  []byte           `json:"blob"`
}

type tree struct {
	Name string  `json:"name"`
	Kids []*tree `json:"kids"`
}

type otherTree struct {
	Name int          `json:"name"`
	Kids []*otherTree `json:"kids"`
}

type textCode int

func (textCode) MarshalText() ([]byte, error) { return []byte("c"), nil }

type opaque struct{}

func (opaque) MarshalJSON() ([]byte, error) { return []byte(`1`), nil }

type opaque2 struct{ opaque }

// replace returns before with one field of another type or tag.
func replace(t *testing.T, name string, typ any, tag string) any {
	t.Helper()
	var fields []reflect.StructField
	for _, f := range reflect.VisibleFields(reflect.TypeFor[before]()) {
		if f.Name == name {
			if typ == nil {
				continue
			}
			f.Type, f.Tag = reflect.TypeOf(typ), reflect.StructTag(`json:"`+tag+`"`)
			name = ""
		}
		f.Index, f.Offset = nil, 0
		fields = append(fields, f)
	}
	if name != "" && typ != nil {
		fields = append(fields, reflect.StructField{Name: name, Type: reflect.TypeOf(typ), Tag: reflect.StructTag(`json:"` + tag + `"`)})
	}
	return reflect.Zero(reflect.StructOf(fields)).Interface()
}

func TestIncompatibleChanges(t *testing.T) {
	type fewer struct {
		SKU string `json:"sku"`
	}
	type more struct {
		SKU, Name string
	}
	for want, after := range map[string]any{
		`the field "total" was removed`:                                                              replace(t, "Total", nil, ""),
		`the field "note" was removed`:                                                               replace(t, "Note", nil, ""),
		`the field "total" was number, and is string now`:                                            replace(t, "Total", "", "total"),
		`the field "total" was number, and is number or null now`:                                    replace(t, "Total", new(float64), "total"),
		`the field "total" was always present, and is optional now`:                                  replace(t, "Total", 0.1, "total,omitempty"),
		`the field "total" was number, and is any value now`:                                         replace(t, "Total", new(any), "total"),
		`the field "qty" of an element of the field "lines" was removed`:                             replace(t, "Lines", []fewer{}, "lines"),
		`the field "lines" was array or null, and is object or null now`:                             replace(t, "Lines", map[string]line{}, "lines"),
		`a value of the field "tags" was integer, and is number now`:                                 replace(t, "Tags", map[string]float64{}, "tags"),
		`the field "SKU" of the field "tags" was integer, and is string now`:                         replace(t, "Tags", more{}, "tags"),
		`the field "at" was string (date-time), and is string now`:                                   replace(t, "At", "", "at"),
		`the field "name" of the field "tree" was string, and is integer now`:                        replace(t, "Tree", new(otherTree), "tree"),
		`the field "root" was object, and is object or null now`:                                     replace(t, "Root", new(tree), "root"),
		`the field "code" was string, and is integer now`:                                            replace(t, "Code", 1, "code"),
		`the field "own" was encoded by outboxtest.opaque, and is encoded by outboxtest.opaque2 now`: replace(t, "Own", opaque2{}, "own"),
		`the field "blob" was string or null (base64), and is string now`:                            replace(t, "Blob", "", "blob"),
		`the field "sku" of a value of the field "more" was removed`:                                 replace(t, "More", map[string]*more{}, "more"),
		`the payload was object, and is array or null now`:                                           []before{},
		`the field "maybe" was integer or null, and is number or null now`:                           replace(t, "Maybe", new(float64), "maybe"),
	} {
		problems := compare(schemaOf(reflect.TypeFor[before]()), schemaOf(reflect.TypeOf(after)))
		if got := strings.Join(problems, "; "); !strings.Contains(got, want) {
			t.Errorf("problems %q, want %q", got, want)
		}
	}
}

func TestCompatibleChanges(t *testing.T) {
	for name, after := range map[string]any{
		"nothing":                 before{},
		"a new field":             replace(t, "New", "", "new"),
		"always present now":      replace(t, "Note", "", "note"),
		"never null now":          replace(t, "Maybe", 1, "maybe"),
		"integer in place":        replace(t, "Total", 1, "total"),
		"any value was allowed":   replace(t, "Any", 1, "any"),
		"a struct in place of it": replace(t, "Tags", struct{ A int }{}, "tags"),
	} {
		if problems := compare(schemaOf(reflect.TypeFor[before]()), schemaOf(reflect.TypeOf(after))); len(problems) > 0 {
			t.Errorf("%s: %q", name, problems)
		}
	}
}

func TestContractFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "contract")
	check := func(update bool, want string, kinds ...Kind) {
		t.Helper()
		if got := fmt.Sprint(checkContract(dir, update, kinds)); !strings.Contains(got, want) || (want == "[]") != (got == "[]") {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	type v1 struct {
		A int
		B int `json:",omitempty"`
	}
	type v1more struct{ A, B, C int }
	type v2 struct{ A string }
	file := filepath.Join(dir, "order.Paid.json")
	check(false, file+" does not exist: run the test with -update-contracts", kind{"Paid", 0, v1{}})
	if _, err := os.Stat(dir); err == nil {
		t.Error("a test without the flag wrote a file")
	}
	check(true, "[]", kind{"Paid", 0, v1{}})
	check(false, "[]", kind{"Paid", 0, v1{}})
	check(false, "has a compatible change", kind{"Paid", 0, v1more{}})
	check(true, "[]", kind{"Paid", 0, v1more{}})
	check(false, `the field "C" was removed`, kind{"Paid", 0, v1{}})
	check(true, `would break consumers: the field "A" was integer, and is string now; the field "B" was removed`, kind{"Paid", 0, v2{}})
	check(true, "[]", kind{"Paid", 2, v2{}})
	check(false, "[]", kind{"Paid", 2, v2{}})
	check(false, "no kind of the test has this name", kind{"Payed", 2, v2{}})
	check(true, "[]", kind{"Paid", 2, v2{}}, kind{"a/b c", 0, v2{}})
	if _, err := os.Stat(filepath.Join(dir, "order.a%2Fb%20c.json")); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	check(true, "read "+file, kind{"Paid", 0, v1{}}, kind{"a/b c", 0, v2{}})
}

// A test of a service.
func TestContract(t *testing.T) {
	Contract(t, outbox.Define[before]("order", "OrderPaid"))
}
