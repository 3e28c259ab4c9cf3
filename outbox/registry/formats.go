package registry

import (
	"fmt"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Avro defines a kind of events in Avro. The schema is that of a named type (a record), and P is a Go type that package
// github.com/hamba/avro/v2 encodes by it: the fields of a struct have the tag avro. It panics if the schema or a name
// is not valid, so it is meant for package variables.
func Avro[P any](aggregateType, eventType, schema string, options ...Option) *Kind[P] {
	parsed, err := avro.ParseWithCache(schema, "", new(avro.SchemaCache)) // not the cache of the process: another version may be there
	if err != nil {
		panic(fmt.Sprintf("registry.Avro(%q, %q): %v", aggregateType, eventType, err))
	}
	named, ok := parsed.(avro.NamedSchema)
	if !ok {
		panic(fmt.Sprintf("registry.Avro(%q, %q): the schema is no named type, such as a record", aggregateType, eventType))
	}
	d := definition{subject: named.FullName(), schema: sr.Schema{Schema: schema, Type: sr.TypeAvro}}
	return newKind(aggregateType, eventType, &d, func(p P) ([]byte, error) { return avro.Marshal(parsed, p) }, options)
}

// Protobuf defines a kind of events in Protobuf. P is the message that protoc-gen-go has generated, as a pointer, and
// file is the text of the .proto file that it was generated from, which the registry stores (with go:embed, for
// example). Files that it imports are [References], except for those of google/protobuf. It panics if a name is not
// valid, so it is meant for package variables.
func Protobuf[P proto.Message](aggregateType, eventType, file string, options ...Option) *Kind[P] {
	var none P
	message := none.ProtoReflect().Descriptor()
	d := definition{subject: string(message.FullName()), schema: sr.Schema{Schema: file, Type: sr.TypeProtobuf}, index: messageIndex(message)}
	return newKind(aggregateType, eventType, &d, func(p P) ([]byte, error) {
		if !p.ProtoReflect().IsValid() {
			return nil, fmt.Errorf("the %s is nil", message.FullName())
		}
		return proto.Marshal(p)
	}, options)
}

// messageIndex is the path to a message in its file: its number among the messages of the file, then among those
// within the message, and so on.
func messageIndex(message protoreflect.Descriptor) []int {
	if _, ok := message.(protoreflect.MessageDescriptor); !ok {
		return nil
	}
	return append(messageIndex(message.Parent()), message.Index())
}
