package outbox_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/outbox"
)

type paid struct {
	Total float64 `json:"total"`
}

func TestKind(t *testing.T) {
	kind := outbox.Define[*paid]("order", "OrderPaid", outbox.SchemaVersion(2))
	p := &paid{Total: 9.5}
	e, err := kind.Event("42", p)
	if err != nil {
		t.Fatal(err)
	}
	p.Total = 0
	want := outbox.Event{AggregateType: "order", AggregateID: "42", Type: "OrderPaid", SchemaVersion: 2, Payload: []byte(`{"total":9.5}`)}
	if !reflect.DeepEqual(e, want) {
		t.Errorf("got  %+v\nwant %+v", e, want)
	}
	var problem *outbox.EventError
	if _, err := kind.Event("42", &paid{math.Inf(1)}); !errors.As(err, &problem) || problem.Field != "Payload" {
		t.Errorf("a payload that is not JSON: %v", err)
	}
}

func TestDefinePanics(t *testing.T) {
	for want, define := range map[string]func(){
		`aggregate type "" is empty`:               func() { outbox.Define[paid]("", "A") },
		`"a b" has the illegal character ' '`:      func() { outbox.Define[paid]("a b", "A") },
		`has more than 249`:                        func() { outbox.Define[paid](strings.Repeat("a", 300), "A") },
		`event type "" is empty`:                   func() { outbox.Define[paid]("a", "") },
		`event type "A\xff" is not UTF-8`:          func() { outbox.Define[paid]("a", "A\xff") },
		`event type "A\n" has a control character`: func() { outbox.Define[paid]("a", "A\n") },
		`schema version 0 is not positive`:         func() { outbox.Define[paid]("a", "A", outbox.SchemaVersion(0)) },
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("panic %q, want %q", got, want)
				}
			}()
			define()
		}()
	}
}
