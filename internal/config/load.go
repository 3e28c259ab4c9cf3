package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

// DefaultFile is the file that [Find] returns if no file is named.
const DefaultFile = "./outboxcdc.yaml"

// Find returns the files to load: the named ones, otherwise [DefaultFile] if it exists, otherwise none.
func Find(files []string) []string {
	if len(files) > 0 {
		return files
	}
	if _, err := os.Stat(DefaultFile); err == nil || !errors.Is(err, os.ErrNotExist) {
		return []string{DefaultFile} // a file that exists and cannot be read is an error of Load
	}
	return nil
}

// Load reads the settings from the defaults, the files (see [Find]), the environment ("NAME=value") and the command
// line ("path=value"). A later source overrides an earlier one, setting by setting; a list is replaced as a whole. Load
// validates the result. It returns all errors, joined; each one is an [*Error], see [Errors].
func Load(files []string, environ []string, flags ...string) (*Config, error) {
	c, err := Read(files, environ, flags...)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Read is [Load] for callers that check for more errors. With errors it also returns a configuration, with defaults for
// the settings that could not be read; nil if a file could not be opened.
func Read(files []string, environ []string, flags ...string) (*Config, error) {
	var sources []source
	var errs []error
	for _, name := range Find(files) {
		data, err := readFile(name)
		if err != nil {
			errs = append(errs, &Error{Problem: "read the configuration: " + err.Error()})
			continue
		}
		sources = append(sources, source{name, data})
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return load(sources, environ, flags...)
}

// source is one file's name and content.
type source struct {
	name string
	data []byte
}

// readFile reads at most one byte more than is allowed, so that a device or a huge file is refused.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFileBytes+1))
}

// load is Read without the file system.
func load(sources []source, environ []string, flags ...string) (*Config, error) {
	c := Default()
	set := func(s *setting, r raw, where string) error {
		if err := s.store(c, r); err != nil {
			return err
		}
		c.origins[s.path] = where
		return nil
	}
	var errs []error
	for _, src := range sources {
		errs = append(errs, readYAML(src.name, src.data, variables(environ), set))
	}
	errs = append(errs, readEnvironment(environ, set), readFlags(flags, set))
	readErr := errors.Join(errs...)
	c.applyPreset()
	c.applySink()
	if err := errors.Join(c.applyOutboxes(), c.Validate()); err != nil {
		return c, errors.Join(readErr, independentErrors(err, readErr))
	}
	return c, readErr
}

// independentErrors returns the errors of a validation that do not depend on settings that could not be read. Such a
// setting has its default instead, so errors of its section, and of settings that are not set, are dropped.
func independentErrors(err, readErr error) error {
	if readErr == nil {
		return err
	}
	section := func(path string) string { return path[:strings.LastIndexByte(path, '.')+1] }
	unread := map[string]bool{}
	for _, e := range Errors(readErr) {
		if e.Path != "" {
			unread[section(e.Path)] = true
		}
	}
	var errs []error
	for _, e := range Errors(err) {
		if e.Where != "" && !unread[section(e.Path)] {
			errs = append(errs, e)
		}
	}
	return errors.Join(errs...)
}

// foreign are prefixes of variables that are no settings: tests, the cache of bundled servers and `setup` read them.
var foreign = []string{"OUTBOXCDC_TEST_", "OUTBOXCDC_CACHE", "OUTBOXCDC_PG_BIN_", "OUTBOXCDC_SETUP_URL"}

// Kubernetes sets these variables in every pod of a namespace with a Service named outboxcdc or outboxcdc-…, so they
// are no typing errors. Their values are checked, too, so that a mistyped OUTBOXCDC_HTTP_PORT=9464 is still an error.
var (
	serviceLink      = regexp.MustCompile(`^OUTBOXCDC_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)$`)
	servicePort      = regexp.MustCompile(`^OUTBOXCDC_(\w+_)?PORT$`)
	servicePortValue = regexp.MustCompile(`^(tcp|udp|sctp)://`)
)

func readEnvironment(environ []string, set func(s *setting, r raw, where string) error) error {
	byVariable := map[string]*setting{}
	var variables []string
	for _, s := range knownSettings() {
		byVariable[EnvName(s.path)] = s
		variables = append(variables, EnvName(s.path))
	}
	var errs []error
	for _, entry := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, envPrefix) || isForeign(name, value) {
			continue
		}
		s, ok := byVariable[name]
		if !ok {
			problem := "unknown environment variable"
			if best := Nearest(name, variables); best != "" {
				problem += fmt.Sprintf("; did you mean %s?", best)
			} else {
				problem += "; a setting's name is OUTBOXCDC_ and its path in capitals, e.g. " + EnvName("postgres.slot")
			}
			errs = append(errs, &Error{Where: name, Problem: problem})
			continue
		}
		if err := set(s, raw{text: value}, name); err != nil {
			errs = append(errs, &Error{Where: name, Path: s.path, Problem: err.Error()})
		}
	}
	return errors.Join(errs...)
}

// readFlags reads "path=value" of the command line. Secrets are refused, because every user of the machine can see a
// command line.
func readFlags(flags []string, set func(s *setting, r raw, where string) error) error {
	const where = "--set"
	var errs []error
	for _, flag := range flags {
		path, value, ok := strings.Cut(flag, "=")
		s, known := knownTree().leaves[path]
		switch {
		case !ok:
			errs = append(errs, &Error{Where: where, Problem: quote(path) + " is not setting=value, e.g. log.level=debug"})
		case !known:
			problem := "unknown setting " + quote(path)
			if best := Nearest(path, paths(knownSettings())); best != "" {
				problem += fmt.Sprintf("; did you mean %q?", best)
			}
			errs = append(errs, &Error{Where: where, Problem: problem})
		case s.secret:
			ways := EnvName(path)
			if knownTree().leaves[path+"_file"] != nil {
				ways += ", " + EnvName(path) + "_FILE"
			}
			errs = append(errs, &Error{Where: where, Path: path, Problem: "is a secret, and every user of this machine can see a command line; use " + ways + " or a file"})
		default:
			if err := set(s, raw{text: value}, where); err != nil {
				errs = append(errs, &Error{Where: where, Path: path, Problem: err.Error()})
			}
		}
	}
	return errors.Join(errs...)
}

func isForeign(name, value string) bool {
	if slices.ContainsFunc(foreign, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
		return true
	}
	return serviceLink.MatchString(name) || (servicePort.MatchString(name) && servicePortValue.MatchString(value))
}
