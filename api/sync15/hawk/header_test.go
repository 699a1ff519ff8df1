package hawk

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMACVectors(t *testing.T) {
	koppel := signed(t, "Ted Koppel is a robot", `{"uid": 1, "node": "http://localhost:5000", "expires": 1884968439.0, "fxa_uid": "319b98f9961ff1dbdd07313cd6ba925a", "fxa_kid": "de697ad66d845b2873c9d7e13b8971af", "hashed_fxa_uid": "0e8df5d41398a389913bd8402435649518af46493da1d4a437a46dc1784c501a", "hashed_device_id": "2bcb92f4d4698c3d7b083a3c698a16ccd78bc2a8d20a96e4bb128ddceaf4e0b6", "salt": "2b307b"}`)
	k := keyring(t, ourSecret, "Ted Koppel is a robot")
	tests := []struct {
		token   string
		now     time.Time
		nonce   string
		request Request
		mac     string
	}{
		{koppel, time.Unix(1569608439, 0), "h1Ch4vo=", Request{"GET", "/storage/1.5/1/storage/col2", "localhost", 5000}, "UwDpC+DSrHCSTQSfMOWlueB6kM6gHb0Hsv8eU9ZcTVs="},
		{koppel, time.Unix(1569608439, 0), "4Rj7c+0=", Request{"POST", "/storage/1.5/1/storage/col2?batch=MTUzNjE5ODk3NjkyMQ==&commit=true", "localhost", 5000}, "E7j1UjN7//mh7pYXsgGi3n0KGR+sUPpuyogDVzJWaHg="},
		{ourToken, ourNow, "abc123", Request{"GET", "/1.5/42/info/collections", "sync.example.org", 443}, "sdPNsJOa+UGnXGB7/jg3MObWViQP/L3V5TKhE44H5LY="},
		{ourToken, ourNow, "abc123", Request{"POST", "/1.5/42/storage/tabs?batch=true", "sync.example.org", 8000}, "P4UCwa535oR516UgWbV3t3PYMxKEpSZ18lxGOrZES3o="},
	}
	for _, tt := range tests {
		h, err := ParseHeader(fmt.Sprintf(`Hawk id="%s", ts="%d", nonce="%s", mac="%s"`, tt.token, tt.now.Unix(), tt.nonce, tt.mac))
		if err != nil {
			t.Fatal(err)
		}
		token, err := k.Verify(h.ID, ourNow)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Verify(tt.request, token.Key, tt.now); err != nil {
			t.Errorf("%v: %v", tt.request, err)
		}
	}
}

func TestMACCoversEveryAttributeAndTheWholeRequest(t *testing.T) {
	request := Request{Method: "PUT", Target: "/1.5/42/storage/a/b", Host: "sync.example.org", Port: 443}
	header := Header{ID: ourToken, TS: "1700000000", Nonce: "n", Hash: "h", Ext: "e", App: "a", Dlg: "d"}
	header.MAC = header.Sign(request, ourKey)
	if err := header.Verify(request, ourKey, ourNow); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Header, *Request, *string){
		"method":      func(_ *Header, r *Request, _ *string) { r.Method = "POST" },
		"path":        func(_ *Header, r *Request, _ *string) { r.Target += "c" },
		"query":       func(_ *Header, r *Request, _ *string) { r.Target += "?" },
		"host":        func(_ *Header, r *Request, _ *string) { r.Host = "example.org" },
		"port":        func(_ *Header, r *Request, _ *string) { r.Port = 80 },
		"key":         func(_ *Header, _ *Request, k *string) { *k = "another" },
		"ts":          func(h *Header, _ *Request, _ *string) { h.TS = "1700000001" },
		"nonce":       func(h *Header, _ *Request, _ *string) { h.Nonce = "m" },
		"hash":        func(h *Header, _ *Request, _ *string) { h.Hash = "" },
		"ext":         func(h *Header, _ *Request, _ *string) { h.Ext = "" },
		"app":         func(h *Header, _ *Request, _ *string) { h.App = "" },
		"dlg":         func(h *Header, _ *Request, _ *string) { h.Dlg = "" },
		"mac":         func(h *Header, _ *Request, _ *string) { h.MAC = strings.ToLower(h.MAC) },
		"short mac":   func(h *Header, _ *Request, _ *string) { h.MAC = h.MAC[:20] },
		"ts not int":  func(h *Header, _ *Request, _ *string) { h.TS = "1700000000.5" },
		"ts overflow": func(h *Header, _ *Request, _ *string) { h.TS = "99999999999999999999" },
	} {
		h, r, k := header, request, ourKey
		change(&h, &r, &k)
		if err := h.Verify(r, k, ourNow); err == nil {
			t.Errorf("with another %s the MAC still matches", name)
		} else {
			wantReason(t, err, InvalidHeader)
		}
	}
}

func TestTimestampMayBeAYearOff(t *testing.T) {
	r := Request{Method: "GET", Target: "/", Host: "h", Port: 1}
	year := int64(Tolerance / time.Second)
	for offset, want := range map[int64]bool{0: true, year: true, -year: true, year + 1: false, -year - 1: false, -1700000001 + -(1 << 62): false} {
		h := Header{TS: fmt.Sprint(ourNow.Unix() + offset), Nonce: "n"}
		h.MAC = h.Sign(r, "k")
		if err := h.Verify(r, "k", ourNow); (err == nil) != want {
			t.Errorf("off by %d s: %v", offset, err)
		}
	}
}

func TestParseHeader(t *testing.T) {
	full := Header{ID: "i", TS: "1", Nonce: "n", MAC: "m=", Hash: "h", Ext: "e,= x", App: "a", Dlg: "d"}
	accepted := map[string]Header{
		`Hawk id="i", ts="1", nonce="n", mac="m="`:      {ID: "i", TS: "1", Nonce: "n", MAC: "m="},
		`hAWK mac="m=",nonce="n" ,  ts="1",id="i", `:    {ID: "i", TS: "1", Nonce: "n", MAC: "m="},
		`Hawk   dlg="",id="i",ts="1",nonce="n",mac="m"`: {ID: "i", TS: "1", Nonce: "n", MAC: "m"},
		full.String(): full,
	}
	for s, want := range accepted {
		got, err := ParseHeader(s)
		if err != nil {
			t.Errorf("%s: %v", s, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", s, diff)
		}
	}
	refused := map[string]Reason{
		``:                      MissingHeader,
		`Hawk`:                  MissingPrefix,
		` Hawk id="i"`:          MissingPrefix,
		`id="i"`:                MissingPrefix,
		`Bearer abc`:            MissingPrefix,
		"Hawk id=\"\x7f\"":      ParseError,
		`Hawk id="é"`:           ParseError,
		`Hawk `:                 BadHeader,
		`Hawk ,`:                BadHeader,
		`Hawk id`:               BadHeader,
		`Hawk id=i`:             BadHeader,
		`Hawk id="i`:            BadHeader,
		`Hawk id="i\"", ts="1"`: BadHeader,
		`Hawk id="i" ts="1"`:    BadHeader,
		`Hawk id="i",,ts="1"`:   BadHeader,
		`Hawk id="i", id="i"`:   BadHeader,
		`Hawk id="i", ts="1", nonce="n", mac="m", ts="1"`:      BadHeader,
		`Hawk id="", id="i"`:                                   BadHeader,
		`Hawk Id="i"`:                                          BadHeader,
		`Hawk id="i", port="1"`:                                BadHeader,
		`Hawk id="i", ts="1"`:                                  BadHeader,
		`Hawk ts="1", nonce="n"`:                               MissingID,
		`Hawk id="", mac="m"`:                                  MissingID,
		"Hawk " + strings.Repeat(`id="i", `, MaxHeaderBytes/8): BadHeader,
	}
	for s, want := range refused {
		t.Run(s[:min(len(s), 40)], func(t *testing.T) {
			_, err := ParseHeader(s)
			wantReason(t, err, want)
		})
	}
}

func FuzzParseHeader(f *testing.F) {
	f.Add(`Hawk id="i", ts="1", nonce="n", mac="m=", hash="h", ext="e", app="a", dlg="d"`)
	f.Add(`hawk mac="m=",nonce="n" ,  ts="1",id="i", `)
	f.Add(`Hawk id=""`)
	f.Fuzz(func(t *testing.T, s string) {
		h, err := ParseHeader(s)
		if err != nil {
			return
		}
		again, err := ParseHeader(h.String())
		if err != nil || again != h {
			t.Errorf("%q was read as %+v, its rendering as %+v, %v", s, h, again, err)
		}
	})
}
