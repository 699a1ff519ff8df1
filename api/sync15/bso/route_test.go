package bso

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParsePath(t *testing.T) {
	for path, want := range map[string]Route{
		"/1.5/42":                              {Resource: Storage, UID: 42},
		"/1.5/0":                               {Resource: Storage},
		"/1.5/9999999999/storage":              {Resource: Storage, UID: 9999999999},
		"/1.5/42/info/collections":             {Resource: InfoCollections, UID: 42},
		"/1.5/42/info/collection_counts":       {Resource: InfoCollectionCounts, UID: 42},
		"/1.5/42/info/collection_usage":        {Resource: InfoCollectionUsage, UID: 42},
		"/1.5/42/info/quota":                   {Resource: InfoQuota, UID: 42},
		"/1.5/42/info/configuration":           {Resource: InfoConfiguration, UID: 42},
		"/1.5/42/storage/tabs":                 {Resource: Collection, UID: 42, Collection: "tabs"},
		"/1.5/42/storage/info/collections":     {Resource: Item, UID: 42, Collection: "info", ID: "collections"},
		"/1.5/42/storage/t%61bs/a%2Fb%20%25c+": {Resource: Item, UID: 42, Collection: "tabs", ID: "a/b %c+"},
		"/1.5/042/storage/.-_/%7E":             {Resource: Item, UID: 42, Collection: ".-_", ID: "~"},
		"/1.5/1/storage/" + strings.Repeat("c", 32) + "/" + strings.Repeat("%69", 64): {Resource: Item, UID: 1, Collection: strings.Repeat("c", 32), ID: strings.Repeat("i", 64)},
	} {
		got, err := ParsePath(path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
		if err := got.CheckNames(); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestPathsThatNameNothingAreNotFound(t *testing.T) {
	for _, path := range []string{
		"", "/", "/1.5", "/1.5/", "/1.0/42", "1.5/42", "/1.5/42/", "/1.5//storage", "/1.5/a", "/1.5/-1", "/1.5/+1", "/1.5/4%32", "/1.5/12345678901", "/1.5/42/info",
		"/1.5/42/info/", "/1.5/42/info/collections/", "/1.5/42/info/nothing", "/1.5/42/storage/", "/1.5/42/storage/tabs/", "/1.5/42/storage//a", "/1.5/42/storage/tabs/a/",
		"/1.5/42/storage/tabs/a/b", "/1.5/42/storage/tabs//b", "/1.5/42/Storage/tabs", "/1.5/42/%73torage/tabs", "/1.5/42/nothing", "/1.5/42/__heartbeat__", "/1.5/٣",
	} {
		_, err := ParsePath(path)
		wantError(t, path, err, 404, CodeOther)
	}
}

func TestBadNamesAreToldByCheckNamesOnly(t *testing.T) {
	for _, path := range []string{
		"/1.5/42/storage/a%2Fb", "/1.5/42/storage/a%20b", "/1.5/42/storage/%zz", "/1.5/42/storage/%C3%A9", "/1.5/42/storage/" + strings.Repeat("c", 33),
		"/1.5/42/storage/a+b/c", "/1.5/42/storage/tabs/%0A", "/1.5/42/storage/tabs/%7F", "/1.5/42/storage/tabs/%", "/1.5/42/storage/tabs/%C3%A9", "/1.5/42/storage/tabs/" + strings.Repeat("i", 65),
	} {
		r, err := ParsePath(path)
		if err != nil || r.UID != 42 {
			t.Errorf("%s: %v, %v", path, r, err)
		}
		wantError(t, path, r.CheckNames(), 400, CodeOther)
	}
}

func TestAllowedMethods(t *testing.T) {
	all := []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "get", ""}
	for resource, want := range map[Resource]string{
		Storage: "DELETE", InfoCollections: "GET HEAD", InfoCollectionCounts: "GET HEAD", InfoCollectionUsage: "GET HEAD", InfoQuota: "GET HEAD", InfoConfiguration: "GET HEAD",
		Collection: "GET HEAD POST DELETE", Item: "GET HEAD PUT DELETE",
	} {
		var got []string
		for _, method := range all {
			if (Route{Resource: resource}).Allows(method) {
				got = append(got, method)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("resource %d allows %v, want %s", resource, got, want)
		}
	}
}

func FuzzParsePath(f *testing.F) {
	f.Add("/1.5/42/storage/t%61bs/a%2Fb%20%25c+")
	f.Add("/1.5/42/info/collections")
	f.Add("/1.5/1/storage/%zz")
	f.Fuzz(func(t *testing.T, path string) {
		r, err := ParsePath(path)
		if err != nil {
			return
		}
		if r.UID > 9999999999 || r.Resource == 0 {
			t.Errorf("%q: %+v", path, r)
		}
		segments := strings.Count(path, "/")
		if r.Resource == Item && segments != 5 || r.Resource == Collection && segments != 4 || r.Resource < Collection && (r.Collection != "" || r.ID != "") {
			t.Errorf("%q: %+v", path, r)
		}
		if r.CheckNames() == nil && r.Resource == Item && (!ValidCollection(r.Collection) || !ValidID(r.ID)) {
			t.Errorf("%q has valid names %+v", path, r)
		}
	})
}
