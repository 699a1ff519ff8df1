// Package fs keeps objects as files in a folder.
//
// # Layout
//
//	root/
//	  holdfast-objects            format marker: what this folder is, and its version
//	  locks/0 … locks/31          empty; locked while a name is created, renamed or removed
//	  locks/owner                 empty; locked by the process that may remove empty folders
//	  tmp/<random>/lock           empty; locked while its process lives
//	  tmp/<random>/<n>            content of a Put that is still running
//	  objects/a.d/b.d/c+d.u       the unfinalized object "a/b/c/d"
//	  objects/a.d/b.d/c+d.f       the same object once it is finalized
//
// The first two segments of a name are folders, the rest is one file, so that a
// Put seldom has to make folders. Each piece is escaped: lower-case letters,
// digits, "-", "_", "." and "~" stand for themselves, "+" for a slash, "^a" for
// "A" (so that names differ on file systems that ignore case), "%ff" for any
// other byte. A piece too long for a file name continues in a folder that ends
// in ".c". The last two characters tell what an entry is, so no escaped name is
// special to the file system. Each name has one path and each path one name;
// package tests hold that down.
//
// # States
//
// A file is a header of 32 bytes (see header) and the content. Its state is in
// its name: Finalize is one rename from ".u" to ".f", Discard removes the ".u"
// file. The custom time of an unfinalized object is in the header rather than
// in the file's modification time, because a backup restored with other times
// must not make the lifecycle delete objects early.
//
// # Durability
//
// Put writes a file in tmp, syncs it, renames it into place and syncs its folder,
// and the parents of folders that are new. Finalize and Delete sync the folder;
// calls that meet in one folder share a sync. A crash leaves at most files in
// tmp, which the next Open removes.
//
// # Several processes
//
// Any number of processes may use one root, provided that the file system has
// working flock locks: creating, finalizing and removing a name is serialized
// by locks/<n>, across processes. On systems without flock (Windows) only one
// process may.
package fs
