package sync15

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
	"github.com/holdfast-dev/holdfast/api/sync15/hawk"
	"github.com/holdfast-dev/holdfast/api/sync15/storage"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/changes"
	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/offload"
	"github.com/holdfast-dev/holdfast/queue"
)

// refusal is the answer to an error.
type refusal struct {
	err    error
	status int
	body   string
	later  bool // Retry-After
	logged bool
	metric string
}

// refusals has every error that a package below the door exports.
var refusals = map[string]refusal{
	"bso.Error":              {&bso.Error{Status: 413, Code: 17, Metric: "request.validate.request_bytes_exceeded"}, 413, "17", false, false, "request_validate_request_bytes_exceeded"},
	"hawk.Error":             {&hawk.Error{Reason: hawk.Expired}, 401, "0", false, false, "request_error_hawk_expired"},
	"storage.ErrNotFound":    {storage.ErrNotFound, 404, "0", false, false, "request_process_missing_bso"},
	"storage.ErrNoBatch":     {storage.ErrNoBatch, 400, "0", false, false, "request_validate_batch_invalid_id"},
	"storage.ErrOverQuota":   {storage.ErrOverQuota, 403, "14", false, false, ""},
	"storage.ErrChanged":     {storage.ErrChanged, 503, "0", true, false, "storage_conflict"},
	"kv.ErrUnknownOutcome":   {kv.ErrUnknownOutcome, 500, "0", false, true, ""},
	"kv.ErrTooLarge":         {kv.ErrTooLarge, 400, "17", false, true, "error_tooMuchData"},
	"kv.ErrInvalid":          {kv.ErrInvalid, 500, "0", false, true, ""},
	"kv.ErrClosed":           {kv.ErrClosed, 503, "0", true, true, ""},
	"kv.ErrSpaceNotFound":    {kv.ErrSpaceNotFound, 500, "0", false, true, ""},
	"kv.ErrSpaceMismatch":    {kv.ErrSpaceMismatch, 500, "0", false, true, ""},
	"kv.ErrUnguardedRange":   {kv.ErrUnguardedRange, 500, "0", false, true, ""},
	"kv.ErrFeedTrimmed":      {kv.ErrFeedTrimmed, 500, "0", false, true, ""},
	"kv.ErrCorrupt":          {kv.ErrCorrupt, 500, "0", false, true, ""},
	"kv.ConflictError":       {&kv.ConflictError{}, 503, "0", true, false, "storage_conflict"},
	"offload.ErrUnavailable": {offload.ErrUnavailable, 503, "0", true, true, ""},
	"offload.ErrMissing":     {offload.ErrMissing, 500, "0", false, true, "storage_gcs_payload_missing"},
	"offload.ErrUnreadable":  {offload.ErrUnreadable, 500, "0", false, true, ""},
	"offload.MissingError":   {&offload.MissingError{Link: "mem://test/x"}, 500, "0", false, true, "storage_gcs_payload_missing"},
	"blob.ErrNotFound":       {blob.ErrNotFound, 500, "0", false, true, "storage_gcs_payload_missing"},
	"blob.ErrExists":         {blob.ErrExists, 500, "0", false, true, ""},
	"blob.ErrCorrupt":        {blob.ErrCorrupt, 500, "0", false, true, ""},
	"blob.ErrWrongSize":      {blob.ErrWrongSize, 500, "0", false, true, ""},
	"blob.ErrInvalidName":    {blob.ErrInvalidName, 500, "0", false, true, ""},
	"blob.ErrInvalidRange":   {blob.ErrInvalidRange, 500, "0", false, true, ""},
	"blob.ErrInvalidURL":     {blob.ErrInvalidURL, 500, "0", false, true, ""},
	"blob.ErrForeignURL":     {blob.ErrForeignURL, 500, "0", false, true, ""},
	"changes.ErrMalformed":   {changes.ErrMalformed, 500, "0", false, true, ""},
	"queue.ErrQueueNotFound": {queue.ErrQueueNotFound, 500, "0", false, true, ""},
	"queue.ErrQueueExists":   {queue.ErrQueueExists, 500, "0", false, true, ""},
	"queue.ErrExists":        {queue.ErrExists, 500, "0", false, true, ""},
	"queue.ErrNotFound":      {queue.ErrNotFound, 500, "0", false, true, ""},
	"queue.ErrSendDisabled":  {queue.ErrSendDisabled, 503, "0", true, true, ""},
	"queue.ErrLeaseLost":     {queue.ErrLeaseLost, 500, "0", false, true, ""},
	"queue.ErrStopped":       {queue.ErrStopped, 500, "0", false, true, ""},

	"storage.PreconditionError":     {&storage.PreconditionError{Modified: 123}, 412, "", false, false, ""},
	"storage.ErrTooManyCollections": {storage.ErrTooManyCollections, 403, "14", false, false, ""},
}

// below are the packages whose errors reach the door, by their folder.
var below = map[string]string{
	"bso": "bso", "hawk": "hawk", "storage": "storage", "offload": "../../offload", "kv": "../../kv", "blob": "../../blob",
	"queue": "../../queue", "changes": "../../changes", "expiry": "../../expiry",
}

func TestEveryErrorOfEveryLayerHasItsAnswer(t *testing.T) {
	exported := map[string]bool{}
	for name, dir := range below {
		for _, e := range exportedErrors(t, dir) {
			exported[name+"."+e] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(exported)) {
		if _, ok := refusals[name]; !ok {
			t.Errorf("%s has no answer: decide what refuse does with it and add it to the table", name)
		}
	}
	for name := range refusals {
		if !exported[name] {
			t.Errorf("%s is in the table and does not exist", name)
		}
	}
	others := map[string]refusal{
		"context.DeadlineExceeded": {context.DeadlineExceeded, 503, "0", true, true, ""},
		"context.Canceled":         {context.Canceled, 500, "0", false, true, ""}, // not by the client
		"errRetry":                 {errRetry, 503, "0", true, false, "storage_conflict"},
		"errNoObjectStore":         {errNoObjectStore, 500, "0", false, true, ""},
		"anything":                 {errors.New("anything"), 500, "0", false, true, ""},
		"a conflict until the end": {errors.Join(context.DeadlineExceeded, &kv.ConflictError{}), 503, "0", true, false, "storage_conflict"},
		"the store's time is up":   {fmt.Errorf("%w: %w", offload.ErrUnavailable, context.DeadlineExceeded), 503, "0", true, true, ""},
	}
	maps.Copy(others, refusals)
	for name, want := range others {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, setup{})
			before := w.countAll()
			rq := &request{Request: w.request(w.user, "GET", "storage/col", nil)}
			a := w.server.refuse(rq, fmt.Errorf("somewhere: %w", want.err))
			if a.status != want.status || string(a.body) != want.body || (a.header.Get("Retry-After") == "10") != want.later {
				t.Errorf("%d %s, Retry-After %q", a.status, a.body, a.header.Get("Retry-After"))
			}
			if logged := strings.Contains(w.log.String(), "sync request failed"); logged != want.logged {
				t.Errorf("logged %v, want %v", logged, want.logged)
			}
			counted := w.counter("syncstorage_" + want.metric + "_total")
			if all := w.countAll() - before; want.metric != "" && counted != 1 || all != counted {
				t.Errorf("%s counts %d, all counters %d", want.metric, counted, all)
			}
		})
	}
}

func TestAnErrorAfterTheClientHasGoneIsNobodysConcern(t *testing.T) {
	w := newWorld(t, setup{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := w.request(w.user, "GET", "storage/col", nil)
	w.serve(r.WithContext(ctx)).want(503)
	if log := w.log.String(); log != "" {
		t.Errorf("log: %s", log)
	}
}

// exportedErrors returns the exported error variables and types of a package.
func exportedErrors(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	must(t, err)
	if len(files) == 0 {
		t.Fatalf("no package in %s", dir)
	}
	var names []string
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		src, err := os.ReadFile(path)
		must(t, err)
		f, err := parser.ParseFile(token.NewFileSet(), path, src, parser.SkipObjectResolution)
		must(t, err)
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.GenDecl:
				if d.Tok != token.VAR {
					continue
				}
				for _, s := range d.Specs {
					for _, n := range s.(*ast.ValueSpec).Names {
						if strings.HasPrefix(n.Name, "Err") {
							names = append(names, n.Name)
						}
					}
				}
			case *ast.FuncDecl:
				if d.Recv == nil || d.Name.Name != "Error" {
					continue
				}
				typ := d.Recv.List[0].Type
				if star, ok := typ.(*ast.StarExpr); ok {
					typ = star.X
				}
				if id, ok := typ.(*ast.Ident); ok && id.IsExported() {
					names = append(names, id.Name)
				}
			}
		}
	}
	return names
}
