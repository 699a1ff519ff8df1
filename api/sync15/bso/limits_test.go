package bso

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestConfigurationShowsTheLimits(t *testing.T) {
	l := DefaultLimits()
	want := `{"max_request_bytes":2625536,"max_post_records":100,"max_post_bytes":2621440,"max_record_payload_bytes":2621440,"max_total_records":10000,"max_total_bytes":262144000,"max_quota_limit":2097152000`
	got, err := l.AppendConfiguration(nil)
	if err != nil || string(got) != want+"}" {
		t.Errorf("got %s, %v", got, err)
	}
	l.Collections, err = ParseOverrides(`{"tabs":{"max_post_bytes":7},"history":{"max_record_payload_bytes":20971520,"max_post_bytes":26214400,"max_request_bytes":26218496}}`)
	if err != nil {
		t.Fatal(err)
	}
	got, err = l.AppendConfiguration([]byte("x"))
	want = "x" + want + `,"collections":{"history":{"max_record_payload_bytes":20971520,"max_post_bytes":26214400,"max_request_bytes":26218496},"tabs":{"max_post_bytes":7}}}`
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestOverridesApplyToTheirCollectionOnly(t *testing.T) {
	l := DefaultLimits()
	l.Collections = map[string]Override{"a": {MaxPostBytes: ptr(int64(7))}, "b": {MaxRequestBytes: ptr(int64(5_000_000)), MaxRecordPayloadBytes: ptr(int64(3))}}
	for name, want := range map[string]CollectionLimits{
		"a": {2_625_536, 100, 7, 2_621_440}, "b": {5_000_000, 100, 2_621_440, 3}, "c": {2_625_536, 100, 2_621_440, 2_621_440},
	} {
		if diff := cmp.Diff(want, l.For(name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if got := l.MaxBody(); got != 5_000_000 {
		t.Errorf("the largest body is %d", got)
	}
	if got := DefaultLimits(); got.MaxBody() != 2_625_536 || len(got.Warnings()) != 0 || got.Validate() != nil {
		t.Errorf("the default limits are not sound: %v, %v", got.Warnings(), got.Validate())
	}
	b := l.For("b")
	if err := b.CheckLength(5_000_000); err != nil {
		t.Error(err)
	}
	if err := b.CheckLength(-1); err != nil {
		t.Error(err)
	}
	wantError(t, "long body", b.CheckLength(5_000_001), 413, CodeTooLarge)
}

func TestValidateNamesEveryMistake(t *testing.T) {
	l := DefaultLimits()
	l.MaxPostRecords, l.MaxQuota = 0, -1
	l.Collections = map[string]Override{"a b": {}, "tabs": {MaxPostBytes: ptr(int64(0))}}
	err := l.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{"max_post_records", "max_quota_limit", `"a b"`, "collection tabs"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not mentioned in: %v", part, err)
		}
	}
}

func TestWarningsAskForRoomAroundThePayloads(t *testing.T) {
	l := DefaultLimits()
	l.Collections = map[string]Override{"tabs": {MaxPostBytes: ptr(int64(2_621_441))}, "history": {MaxPostBytes: ptr(int64(26214400)), MaxRequestBytes: ptr(int64(26218496))}}
	if got := l.Warnings(); len(got) != 1 || !strings.Contains(got[0], "tabs") {
		t.Errorf("got %q", got)
	}
}

func TestParseOverridesRefuses(t *testing.T) {
	for _, text := range []string{"", "[]", `{"a":1}`, `{"a":{"max_total_bytes":1}}`, `{"a":{"max_post_bytes":"1"}}`, `{"a":{"max_post_bytes":1.5}}`, `{"a":{},"a":{}}`} {
		if got, err := ParseOverrides(text); err == nil {
			t.Errorf("%s was read as %v", text, got)
		}
	}
}

func TestCheckAnnounced(t *testing.T) {
	l := DefaultLimits()
	l.Collections = map[string]Override{"tabs": {MaxPostBytes: ptr(int64(10))}}
	for _, ok := range [][]string{
		nil, {"X-Weave-Records", "100"}, {"X-Weave-Bytes", "10"}, {"X-Weave-Total-Records", "10000"}, {"X-Weave-Total-Bytes", "262144000"}, {"X-Weave-Records", "0"},
	} {
		if err := l.CheckAnnounced("tabs", header(ok...)); err != nil {
			t.Errorf("%v: %v", ok, err)
		}
	}
	if err := l.CheckAnnounced("other", header("X-Weave-Bytes", "11")); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"X-Weave-Records", "X-Weave-Bytes", "X-Weave-Total-Records", "X-Weave-Total-Bytes"} {
		for _, value := range []string{"", "-1", "a", "1.5", "+1", " 1"} {
			wantError(t, name+" "+value, l.CheckAnnounced("tabs", header(name, value)), 400, CodeOther)
		}
		wantError(t, name, l.CheckAnnounced("tabs", header(name, "99999999999999999999999")), 400, CodeTooLarge)
	}
	for name, value := range map[string]string{"X-Weave-Records": "101", "X-Weave-Bytes": "11", "X-Weave-Total-Records": "10001", "X-Weave-Total-Bytes": "262144001"} {
		wantError(t, name, l.CheckAnnounced("tabs", header(name, value)), 400, CodeTooLarge)
	}
}
