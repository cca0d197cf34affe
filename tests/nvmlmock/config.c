/* The configuration file: key=value lines, '#' comments. */
#include "nvmlmock.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct { char *key, *value; } *entries;
static size_t entry_count;

int config_read(const char *path)
{
    char *line = NULL;
    size_t room = 0;
    FILE *file = path ? fopen(path, "r") : NULL;

    if (!file)
        return UNKNOWN;
    entry_count = 0; /* the old strings stay: a call still under way may hold one */
    entries = NULL;
    while (getline(&line, &room, file) > 0) {
        char *equals = strchr(line, '=');

        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '#' || !equals)
            continue;
        *equals = '\0';
        entries = realloc(entries, (entry_count + 1) * sizeof *entries);
        entries[entry_count].key = strdup(line);
        entries[entry_count++].value = strdup(equals + 1);
    }
    free(line);
    fclose(file);
    return SUCCESS;
}

static const char *find(const char *format, va_list arguments)
{
    char key[128];

    vsnprintf(key, sizeof key, format, arguments);
    for (size_t i = 0; i < entry_count; i++)
        if (!strcmp(entries[i].key, key))
            return entries[i].value;
    return NULL;
}

const char *config_get(const char *format, ...)
{
    va_list arguments;
    const char *value;

    va_start(arguments, format);
    value = find(format, arguments);
    va_end(arguments);
    return value;
}

unsigned long long config_number(unsigned long long missing, const char *format, ...)
{
    va_list arguments;
    const char *value;

    va_start(arguments, format);
    value = find(format, arguments);
    va_end(arguments);
    return value ? strtoull(value, NULL, 0) : missing;
}

int config_numbers(const char *text, unsigned long long *numbers, int room)
{
    int count = 0;
    char *end;

    while (text && count < room) {
        unsigned long long number = strtoull(text, &end, 0);

        if (end == text)
            break;
        numbers[count++] = number;
        text = end;
    }
    return count;
}
