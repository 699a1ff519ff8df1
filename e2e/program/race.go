//go:build race

package program

// raceDetector says that this test runs under the race detector, and so shall the
// program.
const raceDetector = true
