-- What the tables and functions mean is in the package comment. {schema} stands
-- for the quoted name of the schema.

-- cluster tells servers apart whose transaction numbers have nothing in common.
create function {schema}.cluster() returns text
language sql stable as $$ select system_identifier::text from pg_control_system() $$;

create table {schema}.engine (
	one     boolean primary key default true check (one),
	floor   bigint not null default 0,
	epoch   bigint not null default 1,
	cluster text   not null
);
insert into {schema}.engine (cluster) values ({schema}.cluster());

-- era leads the position of a feed entry. It grows when the numbers of
-- transactions may begin again: epoch with each move to another cluster, the
-- timeline with each promotion of a standby and each restored backup.
create function {schema}.era() returns bigint
language sql stable as $$
	select epoch << 32 | ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint from {schema}.engine where one
$$;

create sequence {schema}.space_id;
create table {schema}.spaces (
	name           text collate "C" primary key,
	id             bigint  not null unique,
	links          boolean not null,
	feed_shards    integer not null,
	feed_retention bigint  not null -- nanoseconds
);

create table {schema}.tombstones (
	id      bigint primary key, -- see rowID in locks.go
	version bigint not null
);

create table {schema}.trimmed (
	space bigint,
	shard integer,
	era   bigint  not null,
	xid   xid8    not null,
	n     integer not null,
	primary key (space, shard)
);

-- space_table names the table of a space for people who look at it.
create function {schema}.space_table(name text, id bigint) returns text
language sql immutable as $$ select name || '_' || id $$;

-- Each space has functions of its own, because their statements are planned once
-- for a connection, while a statement put together at run time is planned each time
-- it runs. Settings leave one plan to choose, by the index, whatever the server
-- knows or believes of the table. Each costs some microseconds, so there are no
-- more than needed; read, write and append run under those of commit.
create function {schema}.create_functions(id bigint, tab text, fed boolean) returns void
language plpgsql as $create$
declare
	by_index constant text := 'set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off';
begin
	-- read compares versions. It returns the highest one, and the numbers of the
	-- rows that have not the expected one.
	execute format($f$
		create function {schema}.read_%1$s(now bigint, keys bytea[], expected bigint[], stored boolean[],
			out high bigint, out failed integer[])
		language plpgsql as $body$
		begin
			select coalesce(max(t.version), 0), array_agg(k.i::integer) filter (where k.expected <>
				case when t.version is null or not k.stored and t.expires_at <= now then 0 else t.version end)
			into high, failed
			from unnest(keys, expected, stored) with ordinality k(key, expected, stored, i)
			left join {schema}.%2$I t on substr(t.key, 1, 2600) = substr(k.key, 1, 2600) and t.key = k.key;
		end $body$ $f$, id, tab);
	execute format($f$
		create function {schema}.write_%1$s(v bigint, keys bytea[], vals bytea[], links text[], expires bigint[], deleted boolean[])
		returns void
		language plpgsql as $body$
		#variable_conflict use_column
		begin
			if true = any(deleted) then
				delete from {schema}.%2$I t using unnest(keys, deleted) k(key, deleted)
				where k.deleted and substr(t.key, 1, 2600) = substr(k.key, 1, 2600) and t.key = k.key;
			end if;
			if false = any(deleted) then
				insert into {schema}.%2$I as t (key, value, link, expires_at, version)
				select k.key, k.value, k.link, k.expires_at, v
				from unnest(keys, vals, links, expires, deleted) k(key, value, link, expires_at, deleted)
				where not k.deleted
				on conflict (substr(key, 1, 2600),
					(case when octet_length(key) > 2600 then sha256(substr(key, 2601)) else ''::bytea end))
				do update set (value, link, expires_at, version) =
					row (excluded.value, excluded.link, excluded.expires_at, excluded.version);
			end if;
		end $body$ $f$, id, tab);
	-- get and the functions behind it are stable: all they do in one statement of
	-- the caller sees the same.
	execute format($f$
		create function {schema}.get_%1$s(keys bytea[])
		returns table (i integer, value bytea, link text, expires_at bigint, version bigint)
		language plpgsql stable rows 10 %3$s set enable_hashjoin = off set enable_mergejoin = off as $body$
		#variable_conflict use_column
		begin
			return query select k.i::integer, t.value, t.link, t.expires_at, t.version
			from unnest(keys) with ordinality k(key, i)
			join {schema}.%2$I t on substr(t.key, 1, 2600) = substr(k.key, 1, 2600) and t.key = k.key;
		end $body$ $f$, id, tab, by_index);
	-- scan returns a page: at most so many rows, up to the one with which their
	-- values reach so many bytes. Bounds that are null leave a side open.
	execute format($f$
		create function {schema}.scan_%1$s(low bytea, high bytea, backwards boolean, now bigint, stored boolean, most integer, bytes bigint)
		returns table (key bytea, value bytea, link text, expires_at bigint, version bigint)
		language plpgsql stable %3$s set enable_sort = off as $body$
		#variable_conflict use_column
		declare
			low_head bytea;
			high_head bytea;
		begin
			low := coalesce(low, '');
			high := coalesce(high, decode(repeat('ff', 4001), 'hex')); -- above all keys
			low_head := substr(low, 1, 2600);
			high_head := substr(high, 1, 2600);
			if backwards then
				return query select p.key, p.value, p.link, p.expires_at, p.version from (
					select q.*, sum(octet_length(q.value)) over (rows between unbounded preceding and 1 preceding) as before from (
						select * from {schema}.%2$I t
						where substr(t.key, 1, 2600) between low_head and high_head and t.key >= low and t.key < high
							and (stored or t.expires_at is null or t.expires_at > now)
						order by substr(t.key, 1, 2600) desc, t.key desc limit most
					) q
				) p where p.before is null or p.before < bytes;
			else
				return query select p.key, p.value, p.link, p.expires_at, p.version from (
					select q.*, sum(octet_length(q.value)) over (rows between unbounded preceding and 1 preceding) as before from (
						select * from {schema}.%2$I t
						where substr(t.key, 1, 2600) between low_head and high_head and t.key >= low and t.key < high
							and (stored or t.expires_at is null or t.expires_at > now)
						order by substr(t.key, 1, 2600), t.key limit most
					) q
				) p where p.before is null or p.before < bytes;
			end if;
		end $body$ $f$, id, tab, by_index);
	if not fed then
		return;
	end if;
	-- append adds to the feed.
	execute format($f$
		create function {schema}.append_%1$s(now bigint, v bigint, shards integer[], keys bytea[], entries bytea[]) returns void
		language plpgsql as $body$
		#variable_conflict use_column
		begin
			insert into {schema}.%2$I (shard, era, xid, n, key, version, at, data)
			select f.shard, {schema}.era(), pg_current_xact_id(), f.n::integer, f.key, v, now, f.data
			from unnest(shards, keys, entries) with ordinality f(shard, key, data, n);
		end $body$ $f$, id, tab || '_feed');
	-- fetch returns what is to be known of a shard, in one row without an era:
	-- the first transaction that may still add entries, the first one that has
	-- not begun, whether there are entries at or behind the first, whether some
	-- behind the given place were removed. Entries follow, in order.
	execute format($f$
		create function {schema}.fetch_%1$s(of integer, after_era bigint, after_xid xid8, after_n integer,
			cutoff bigint, most integer, bytes bigint)
		returns table (era bigint, xid xid8, n integer, key bytea, version bigint, at bigint, data bytea,
			next xid8, ahead boolean, gone boolean)
		language plpgsql stable %3$s set enable_sort = off as $body$
		#variable_conflict use_column
		declare
			now_era constant bigint := {schema}.era();
			settled constant xid8 := {schema}.settled();
			beginning constant boolean := after_era = 0;
		begin
			return query select null::bigint, settled, null::integer, null::bytea, null::bigint, null::bigint, null::bytea,
				pg_snapshot_xmax(pg_current_snapshot()),
				coalesce((
					select f.era = now_era and f.xid >= settled from {schema}.%2$I f where f.shard = of
					order by f.shard desc, f.era desc, f.xid desc, f.n desc limit 1), false),
				exists (
					select from {schema}.trimmed t where t.space = %1$s and t.shard = of
						and (t.era, t.xid, t.n) > (after_era, after_xid, after_n));
			return query select p.era, p.xid, p.n, p.key, p.version, p.at, p.data, null::xid8, null::boolean, null::boolean from (
				select q.*, sum(octet_length(q.data)) over (rows between unbounded preceding and 1 preceding) as before from (
					select * from {schema}.%2$I f
					where f.shard = of and (f.era, f.xid, f.n) > (after_era, after_xid, after_n)
						and (f.era < now_era or f.xid < settled) and (not beginning or f.at >= cutoff)
					order by f.shard, f.era, f.xid, f.n limit most
				) q
			) p where p.before is null or p.before < bytes;
		end $body$ $f$, id, tab || '_feed', by_index);
end $create$;

create function {schema}.create_space(name text, links boolean, feed_shards integer, feed_retention bigint) returns boolean
language plpgsql as $create$
#variable_conflict use_column
declare
	old {schema}.spaces;
	new_id bigint;
	tab text;
begin
	perform pg_advisory_xact_lock({catalog_lock});
	select * into old from {schema}.spaces s where s.name = $1;
	if found then
		return (old.links, old.feed_shards, old.feed_retention) = ($2, $3, $4);
	end if;
	new_id := nextval('{schema}.space_id');
	tab := {schema}.space_table($1, new_id);
	insert into {schema}.spaces values ($1, new_id, $2, $3, $4);
	execute format($t$
		create table {schema}.%I (
			key        bytea  not null,
			value      bytea  not null,
			link       text,
			expires_at bigint, -- microseconds since 1970
			version    bigint not null
		)$t$, tab);
	-- An entry of an index holds at most 2704 bytes, and a key is longer.
	execute format($t$
		create unique index on {schema}.%I (
			substr(key, 1, 2600),
			(case when octet_length(key) > 2600 then sha256(substr(key, 2601)) else ''::bytea end)
		)$t$, tab);
	if $3 > 0 then
		execute format($t$
			create table {schema}.%I (
				shard   integer not null,
				era     bigint  not null,
				xid     xid8    not null,
				n       integer not null,
				key     bytea   not null,
				version bigint  not null,
				at      bigint  not null, -- microseconds since 1970
				data    bytea   not null,
				primary key (shard, era, xid, n)
			)$t$, tab || '_feed');
	end if;
	perform {schema}.create_functions(new_id, tab, $3 > 0);
	return true;
end $create$;

create function {schema}.drop_space(name text) returns boolean
language plpgsql as $drop$
declare
	old {schema}.spaces;
	tab text;
	f text;
	high bigint;
begin
	perform pg_advisory_xact_lock({catalog_lock});
	delete from {schema}.spaces s where s.name = $1 returning * into old;
	if not found then
		return false;
	end if;
	tab := {schema}.space_table(old.name, old.id);
	-- A space created under the name goes on above all versions of this one.
	execute format('lock table {schema}.%I in access exclusive mode', tab);
	execute format('select max(version) from {schema}.%I', tab) into high;
	update {schema}.engine set floor = greatest(floor, high, (select max(version) from {schema}.tombstones));
	execute format('drop table {schema}.%I', tab);
	execute format('drop table if exists {schema}.%I', tab || '_feed');
	delete from {schema}.trimmed where space = old.id;
	foreach f in array array['read', 'write', 'get', 'scan', 'append', 'fetch'] loop
		execute format('drop function if exists {schema}.%s_%s', f, old.id);
	end loop;
	return true;
end $drop$;

-- commit is one minitransaction. Rows, writes and entries are grouped by space:
-- group g of a kind is of space spaces[g] and ends at ends[g].
create function {schema}.commit(
	now bigint, lowest bigint, locks bigint[], exclusive boolean[],
	row_spaces bigint[], row_ends integer[], row_keys bytea[], row_expected bigint[], row_stored boolean[],
	write_spaces bigint[], write_ends integer[], write_keys bytea[], write_values bytea[], write_links text[],
	write_expires bigint[], write_deleted boolean[], dead bigint[], written bigint[],
	feed_spaces bigint[], feed_ends integer[], feed_shards integer[], feed_keys bytea[], feed_data bytea[],
	out version bigint, out failed integer[])
language plpgsql
set plan_cache_mode = force_generic_plan set jit = off set enable_seqscan = off set enable_bitmapscan = off
set enable_sort = off set enable_hashjoin = off set enable_mergejoin = off as $commit$
#variable_conflict use_column
declare
	first integer;
	last integer;
	seen bigint;
	wrong integer[];
	high bigint := 0;
begin
	-- Each statement below must see what was committed before it began.
	if current_setting('transaction_isolation') <> 'read committed' or pg_current_xact_id_if_assigned() is not null then
		raise exception 'commits need the isolation level read committed and a transaction of their own' using errcode = 'HF001';
	end if;
	-- Who sees a commit may rely on it: it has to be on disk before it is visible.
	if current_setting('synchronous_commit') = 'off' then
		perform set_config('synchronous_commit', 'on', true);
	end if;
	-- In the order of the arrays, which all commits share.
	perform case when l.exclusive then pg_advisory_xact_lock(l.id) else pg_advisory_xact_lock_shared(l.id) end
	from unnest(locks, exclusive) l(id, exclusive);

	first := 1;
	for g in 1 .. cardinality(row_spaces) loop
		last := row_ends[g];
		execute 'select * from {schema}.read_' || row_spaces[g] || '($1, $2, $3, $4)' into seen, wrong
			using now, row_keys[first:last], row_expected[first:last], row_stored[first:last];
		high := greatest(high, seen);
		if wrong is not null then
			failed := failed || array(select w + first - 1 from unnest(wrong) w);
		end if;
		first := last + 1;
	end loop;
	if failed is not null then
		return;
	end if;

	-- One statement, because the sweep raises the floor as it removes tombstones.
	select greatest(high, e.floor, (select max(t.version) from {schema}.tombstones t where t.id = any(written)))
	into high from {schema}.engine e where e.one;
	version := greatest(lowest, high + 1);

	if cardinality(dead) > 0 then
		insert into {schema}.tombstones as t (id, version) select distinct d, version from unnest(dead) d
		on conflict (id) do update set version = greatest(t.version, excluded.version);
	end if;
	first := 1;
	for g in 1 .. cardinality(write_spaces) loop
		last := write_ends[g];
		execute 'select {schema}.write_' || write_spaces[g] || '($1, $2, $3, $4, $5, $6)'
			using version, write_keys[first:last], write_values[first:last], write_links[first:last],
				write_expires[first:last], write_deleted[first:last];
		first := last + 1;
	end loop;
	first := 1;
	for g in 1 .. cardinality(feed_spaces) loop
		last := feed_ends[g];
		execute 'select {schema}.append_' || feed_spaces[g] || '($1, $2, $3, $4, $5)'
			using now, version, feed_shards[first:last], feed_keys[first:last], feed_data[first:last];
		first := last + 1;
	end loop;
end $commit$;

-- settled returns the first transaction, as the calling statement sees it, that
-- may still add entries to a feed. Transactions of others hold nothing up: only
-- commits hold advisory locks of this database, from before they have a number
-- until after they have ended.
create function {schema}.settled() returns xid8
language plpgsql stable as $settled$
declare
	snapshot pg_snapshot := pg_current_snapshot();
begin
	if pg_snapshot_xmin(snapshot) = pg_snapshot_xmax(snapshot) then
		return pg_snapshot_xmax(snapshot);
	end if;
	return coalesce((
		with held as materialized (
			select locktype, transactionid, database, virtualtransaction from pg_locks
			where locktype in ('transactionid', 'advisory') and granted
		)
		select x from pg_snapshot_xip(snapshot) x where not exists (
			select from held h where h.locktype = 'transactionid' and h.transactionid = x::xid and not exists (
				select from held a where a.locktype = 'advisory' and a.virtualtransaction = h.virtualtransaction
					and a.database = (select oid from pg_database where datname = current_database())))
		order by x limit 1
	), pg_snapshot_xmax(snapshot));
end $settled$;

-- sweep raises the floor and removes the tombstones that it covers.
create function {schema}.sweep(covered bigint) returns bigint
language plpgsql as $sweep$
declare
	removed bigint := 0;
begin
	if pg_try_advisory_xact_lock({sweep_lock}) then
		update {schema}.engine set floor = greatest(floor, covered);
		delete from {schema}.tombstones where version <= covered;
		get diagnostics removed = row_count;
	end if;
	return removed;
end $sweep$;

-- trim removes the entries at the head of a shard that were written before cutoff,
-- and notes where it got to. The unsettled stay, and what is behind them.
create function {schema}.trim(space bigint, shard integer, cutoff bigint, most integer) returns integer
language plpgsql as $trim$
#variable_conflict use_column
declare
	feed text;
	mark record;
	removed integer := 0;
begin
	if not pg_try_advisory_xact_lock({sweep_lock}) then
		return 0;
	end if;
	select {schema}.space_table(s.name, s.id) || '_feed' into feed from {schema}.spaces s where s.id = $1 and s.feed_shards > $2;
	if feed is null then
		return 0;
	end if;
	execute format($q$
		select p.era, p.xid, p.n, p.i from (
			select f.era, f.xid, f.n, row_number() over w as i, bool_and(f.at < $2) over w as old
			from (select * from {schema}.%I
				where shard = $1 and (era < {schema}.era() or xid < pg_snapshot_xmin(pg_current_snapshot()))
				order by era, xid, n limit $3) f
			window w as (order by f.era, f.xid, f.n)
		) p where p.old order by p.i desc limit 1$q$, feed)
	into mark using $2, $3, $4;
	if mark.i is null then
		return 0;
	end if;
	insert into {schema}.trimmed values ($1, $2, mark.era, mark.xid, mark.n)
	on conflict (space, shard) do update set (era, xid, n) = row (excluded.era, excluded.xid, excluded.n);
	execute format('delete from {schema}.%I where shard = $1 and (era, xid, n) <= ($2, $3, $4)', feed)
	using $2, mark.era, mark.xid, mark.n;
	get diagnostics removed = row_count;
	return removed;
end $trim$;
