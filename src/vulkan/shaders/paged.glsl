/* State of texts, page by page: where a part of a page begins, and what a cache holds there. */
struct Paged {
    uvec2 base;  /* of page 0; with a table: where in a page, in bytes */
    uvec2 table; /* address of the pages' addresses (Addresses), or null */
    uint page_bytes, part_bytes;
};

uvec2 part_address(Paged s, uint page, uint part)
{
    uvec2 at = s.table == uvec2(0) ? address_at(s.base, page, s.page_bytes)
                                   : address_at(Addresses(s.table).d[page], s.base.x, 1);
    return address_at(at, part, s.part_bytes);
}

const uint CACHE_F32 = 0, CACHE_F16 = 1, CACHE_Q8_0 = 3; /* as enum elem_type */
