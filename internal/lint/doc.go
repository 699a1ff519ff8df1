// Package lint holds the rules of the house as tests: who may import whom, and
// what code may not call. It has no code of its own.
package lint
